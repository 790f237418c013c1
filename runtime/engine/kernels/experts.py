"""Rows times the matrix of the expert that each is sent to, and the two gradients.

On CUDA in half precision the kernel of triton_experts.py reads and writes rows where they lie.
Elsewhere, and for the gradients of matrices, rows are put in the order of experts, so that each
expert has a run of them.

Legend: N leading dims of tokens, K choices of a token, R = N K rows, E experts of this rank, I/O
features. A weight is [E, O, I], or [E, I, O] where `transposed`. `start` is the first expert that
this rank holds; a row of another rank's expert gives 0.
"""

from functools import lru_cache, partial
from importlib.util import find_spec

import torch
from torch import Tensor

from .agreement import agree
from .opaque import opaque

_ALIGNED = 8  # features that the grouped matmul of torch takes in bf16: 16 bytes
_HALF = (torch.bfloat16, torch.float16)
_TRITON = find_spec("triton") is not None


def _expert_linear(x: Tensor, w: Tensor, ids: Tensor, transposed: bool, start: int = 0) -> Tensor:
    order, ends = _runs(ids, w.shape[0], start)
    matrices_EIO = w if transposed else w.transpose(1, 2)
    if _fused(x):
        from . import triton_experts as ours

        y_RO = ours.products(*_flat(x, ids), matrices_EIO, order, ends)
        return y_RO.view(*ids.shape, y_RO.shape[-1])
    return _back(_grouped(_rows(x, ids)[order], matrices_EIO, ends), order, ids)


def _expert_linear_fake(
    x: Tensor, w: Tensor, ids: Tensor, transposed: bool, start: int = 0
) -> Tensor:
    return x.new_empty((*ids.shape, w.shape[2 if transposed else 1]))


def _expert_linear_input_grad(
    dy: Tensor, w: Tensor, ids: Tensor, transposed: bool, shared: bool, start: int = 0
) -> Tensor:
    dx = _expert_linear(dy, w, ids, not transposed, start)
    return dx.sum(-2) if shared else dx


def _expert_linear_input_grad_fake(
    dy: Tensor, w: Tensor, ids: Tensor, transposed: bool, shared: bool, start: int = 0
) -> Tensor:
    rows = ids.shape[:-1] if shared else ids.shape
    return dy.new_empty((*rows, w.shape[1 if transposed else 2]))


def _expert_linear_weight_grad(
    dy: Tensor, x: Tensor, ids: Tensor, experts: int, transposed: bool, start: int = 0
) -> Tensor:
    order, ends = _runs(ids, experts, start)
    dy_RO, x_RI = _rows(dy, ids)[order], _rows(x, ids)[order]
    left, right = (x_RI, dy_RO) if transposed else (dy_RO, x_RI)
    if _takes_groups(left, right):
        return torch._grouped_mm(left.t(), right, offs=ends[1:].int())
    if ends.is_meta:  # a dry run has no values
        return _expert_linear_weight_grad_fake(dy, x, ids, experts, transposed)
    bounds = ends.tolist()
    return torch.stack([left[a:b].t() @ right[a:b] for a, b in _pairs(bounds)])


def _expert_linear_weight_grad_fake(
    dy: Tensor, x: Tensor, ids: Tensor, experts: int, transposed: bool, start: int = 0
) -> Tensor:
    features = dy.shape[-1], x.shape[-1]
    return dy.new_empty((experts, *(features[::-1] if transposed else features)))


def _fused(x: Tensor) -> bool:
    """Whether the kernel of triton_experts.py takes rows like these."""
    return _TRITON and x.is_cuda and x.dtype in _HALF and _equal_here(x.device)


@lru_cache
def _equal_here(device: torch.device) -> bool:
    """Whether the kernel of triton_experts.py computes the formula on this device, else warn."""
    return agree("experts are", device, partial(_compare, device))


def _compare(device: torch.device) -> None:
    """Compare small sums of whole numbers, which float16 holds exactly."""
    from . import triton_experts as ours

    draws = torch.Generator().manual_seed(0)
    x = torch.randint(-2, 3, (600, 24), generator=draws).half().to(device)
    w = torch.randint(-2, 3, (3, 40, 24), generator=draws).half().to(device)
    order, ends = _runs(torch.randint(4, (600,), generator=draws).to(device), 3, 0)
    made, bounds = ours.products(x, 1, w.transpose(1, 2), order, ends), ends.tolist()
    for expert, (a, b) in enumerate(_pairs(bounds)):
        mine = order[a:b]
        torch.testing.assert_close(made[mine].float(), x[mine].float() @ w[expert].float().t())
    assert not made[order[bounds[-1] :]].any()


def _flat(x: Tensor, ids: Tensor) -> tuple[Tensor, int]:
    """(x by rows beside each other, how many choices each row serves)."""
    choices = ids.shape[-1] if x.dim() == ids.dim() else 1
    return x.reshape(-1, x.shape[-1]).contiguous(), choices


def _runs(ids: Tensor, experts: int, start: int) -> tuple[Tensor, Tensor]:
    """The rows in the order of experts [R], and where the run of each ends [E + 1].

    Rows of experts that other ranks hold come behind the last run.
    """
    local = ids.reshape(-1) - start
    local = torch.where((local < 0) | (local >= experts), experts, local)
    short = torch.int16 if experts < 2**15 else torch.int64  # a sort on CUDA passes by 8 bits
    ordered, order = torch.sort(local.to(short), stable=True)
    bounds = torch.arange(experts + 1, dtype=short, device=ids.device)
    return order, torch.searchsorted(ordered, bounds)


def _rows(x: Tensor, ids: Tensor) -> Tensor:
    """x by rows [R, I]; where choices share it, each has the token's."""
    if x.dim() == ids.dim():
        x = x.unsqueeze(-2).expand(*ids.shape, x.shape[-1])
    return x.reshape(-1, x.shape[-1])


def _grouped(x_RI: Tensor, w_EIO: Tensor, ends: Tensor) -> Tensor:
    """Each run of rows times its expert's matrix; 0 behind the last run."""
    if _takes_groups(x_RI, w_EIO):
        y_RO = torch._grouped_mm(x_RI, w_EIO, offs=ends[1:].int())
        behind = torch.arange(len(y_RO), device=ends.device) >= ends[-1]
        return torch.where(behind[:, None], 0, y_RO)
    y_RO = x_RI.new_zeros((len(x_RI), w_EIO.shape[2]))
    bounds = [] if ends.is_meta else ends.tolist()  # a dry run has no values
    for expert, (a, b) in enumerate(_pairs(bounds)):
        torch.mm(x_RI[a:b], w_EIO[expert], out=y_RO[a:b])
    return y_RO


def _pairs(bounds: list[int]) -> list[tuple[int, int]]:
    return list(zip(bounds, bounds[1:], strict=False))


def _takes_groups(*operands: Tensor) -> bool:
    """Whether torch's grouped matmul takes operands: in bf16, rows of whole 16 bytes."""
    return all(
        x.dtype is torch.bfloat16 and all(n % _ALIGNED == 0 for n in x.shape[1:]) for x in operands
    )


def _back(y_RO: Tensor, order: Tensor, ids: Tensor) -> Tensor:
    """Rows in the order of tokens again [N, K, O]."""
    placed = torch.empty_like(y_RO).index_copy_(0, order, y_RO)
    return placed.reshape(*ids.shape, y_RO.shape[-1])


_linear = opaque(_expert_linear, _expert_linear_fake)
_input_grad = opaque(_expert_linear_input_grad, _expert_linear_input_grad_fake)
_weight_grad = opaque(_expert_linear_weight_grad, _expert_linear_weight_grad_fake)


def expert_linear(x: Tensor, w: Tensor, ids: Tensor, transposed: bool, start: int = 0) -> Tensor:
    """x [N, K, I], or [N, I] for all choices, ids [N, K] -> [N, K, O].

    Opaque, as how many rows an expert gets is no size that a compiler knows.
    """
    return _linear(x, w, ids, transposed, start)


def expert_linear_input_grad(
    dy: Tensor, w: Tensor, ids: Tensor, transposed: bool, shared: bool, start: int = 0
) -> Tensor:
    """dy [N, K, O] -> [N, K, I]; summed over choices, [N, I], where they shared x."""
    return _input_grad(dy, w, ids, transposed, shared, start)


def expert_linear_weight_grad(
    dy: Tensor, x: Tensor, ids: Tensor, experts: int, transposed: bool, start: int = 0
) -> Tensor:
    """dy [N, K, O], x as in forward -> dw of this rank's experts."""
    return _weight_grad(dy, x, ids, experts, transposed, start)
