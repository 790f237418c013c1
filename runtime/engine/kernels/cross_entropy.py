"""Linear + cross-entropy over a vocabulary shard, chunked over tokens.

Logits exist for one chunk of tokens at a time, in at least float32 after the matmul; all of them
exist, in the type of x, where forward keeps them for backward. `start` is the first vocabulary id
that this rank's rows of w hold. On CUDA the kernels of triton_loss.py read logits in half
precision. Legend: T tokens, I features, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from importlib.util import find_spec

import torch
from torch import Tensor

from .agreement import agree
from .linear import add_linear_weight_grad, linear_input_grad
from .opaque import opaque

# By type of device, what the vocabulary is filled up to: the matrix unit reads rows of multiples of
# 8 whole, Triton those of 16.
ROWS = {"cuda": 16}
CHUNK_ELEMENTS = 2048 * 131072  # logits of one chunk: 0.5 GiB in bf16
# By type of device, the tokens of a chunk in half precision, at least: every chunk reads and writes
# the gradient of w. Gemma 3 1B takes 0.848 s a step by 1,024 tokens and 0.822 by 4,096 (H200,
# 2026-11-28).
LEAST_TOKENS = {"cuda": 4096}


_HALF = (torch.bfloat16, torch.float16)
_TRITON = find_spec("triton") is not None


def _chunk(tokens: int, w: Tensor) -> int:
    """Return how many of the tokens have logits at once."""
    least = LEAST_TOKENS.get(w.device.type, 1) if w.dtype in _HALF else 1
    return max(1, min(tokens, max(least, CHUNK_ELEMENTS // w.shape[0])))


def _capped(logits_TV: Tensor, softcap: float) -> tuple[Tensor, Tensor | None]:
    """(logits, tanh of the capped logits or None) in at least float32."""
    logits = logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32))
    if softcap == 0.0:
        return logits, None
    bounded = torch.tanh(logits / softcap)
    return bounded * softcap, bounded


def _local(labels_T: Tensor, start: int, rows: int) -> tuple[Tensor, Tensor]:
    """(label's row here or 0, whether it lies here); ignored labels lie nowhere."""
    here = (labels_T >= start) & (labels_T < start + rows)
    return torch.where(here, labels_T - start, 0), here


def linear_cross_entropy(
    x: Tensor, w: Tensor, labels: Tensor, *, softcap: float, start: int
) -> tuple[Tensor, Tensor]:
    """x [..., I], w [V, I], labels [...] -> (log-sum-exp, logit of the label or 0), both [...]."""
    x_TI = x.reshape(-1, x.shape[-1])
    size = _chunk(x_TI.shape[0], w)
    return _statistics(_logits(x_TI.split(size), w), labels, size, softcap, start)


def linear_cross_entropy_keeping(
    x: Tensor, w: Tensor, labels: Tensor, *, softcap: float, start: int
) -> tuple[Tensor, Tensor, Tensor]:
    """linear_cross_entropy with the logits [..., V] that backward need not compute again."""
    (logits,) = _logits([x], w)
    logits_TV = logits.view(-1, w.shape[0])
    size = _chunk(logits_TV.shape[0], w)
    return *_statistics(logits_TV.split(size), labels, size, softcap, start), logits


def _logits(parts: Sequence[Tensor], w: Tensor) -> Iterator[Tensor]:
    """[..., V] of each part; rows begin where the matrix unit reads them whole."""
    whole = _whole(w)
    return ((x @ whole.t())[..., : w.shape[0]] for x in parts)


def _whole(w: Tensor) -> Tensor:
    """w with rows of zeros up to a multiple of ROWS. GPT-2's 50,257: matmuls on an H200 take 1.2 ms
    in place of 6.5 to 9 (5,341 tokens, 768 features, 2026-11-23)."""
    missing = -w.shape[0] % ROWS.get(w.device.type, 1)
    return _filled(w, missing) if missing else w


def _filled_up(w: Tensor, missing: int) -> Tensor:
    return torch.nn.functional.pad(w, (0, 0, 0, missing))


# An op of its own, as torch.compile would fill w up anew for each chunk and hold them all: seven of
# 153 MiB at the peak of a GPT-2 of 1.5B.
_filled = opaque(_filled_up, lambda w, missing: w.new_empty(w.shape[0] + missing, w.shape[1]))


def _statistics(
    parts: Iterable[Tensor], labels: Tensor, size: int, softcap: float, start: int
) -> tuple[Tensor, Tensor]:
    """(log-sum-exp, logit of the label or 0) of logits that come in chunks of `size` tokens."""
    label_parts = labels.reshape(-1).split(size)
    found = [
        (_by_triton if _fused(part) else _statistics_of)(part, label_part, softcap, start)
        for part, label_part in zip(parts, label_parts, strict=True)
    ]
    lse, picked = (torch.cat(column).view(labels.shape) for column in zip(*found, strict=True))
    return lse, picked


def _fused(logits: Tensor) -> bool:
    """Whether the kernels of triton_loss.py read these logits."""
    return _TRITON and logits.is_cuda and logits.dtype in _HALF


def _statistics_of(
    logits_TV: Tensor, labels: Tensor, softcap: float, start: int
) -> tuple[Tensor, Tensor]:
    logits, _ = _capped(logits_TV, softcap)
    row, here = _local(labels, start, logits.shape[1])
    chosen = logits.gather(1, row.unsqueeze(1)).squeeze(1)
    return torch.logsumexp(logits, dim=-1), torch.where(here, chosen, 0.0)


def _loss_statistics(
    logits: Tensor, labels: Tensor, softcap: float, start: int
) -> tuple[Tensor, Tensor]:
    if not _equal_here(logits.device):
        return _statistics_of(logits, labels, softcap, start)
    from . import triton_loss as ours

    return ours.statistics(logits, labels, softcap, start)


def _loss_gradient(
    logits: Tensor,
    dlse: Tensor,
    dpicked: Tensor,
    labels: Tensor,
    lse: Tensor,
    softcap: float,
    start: int,
    width: int,
) -> Tensor:
    given = logits, dlse, dpicked, labels, lse, softcap, start, width
    if not _equal_here(logits.device):
        return _gradient_of(*given)
    from . import triton_loss as ours

    return ours.gradient(*given)


@lru_cache
def _equal_here(device: torch.device) -> bool:
    """Whether the kernels of triton_loss.py compute the formulas on this device, else warn."""
    return agree("the loss is", device, partial(_compare, device))


def _compare(device: torch.device) -> None:
    from . import triton_loss as ours

    logits = torch.linspace(-9, 9, 3 * 5000, device=device).view(3, 5000).bfloat16()
    labels = torch.tensor([7, -100, 4999], device=device)
    ones = torch.ones(3, device=device)
    lse, picked = ours.statistics(logits, labels, 4.0, 0)
    given = logits, ones, -ones, labels, lse, 4.0, 0, 5008
    torch.testing.assert_close((lse, picked), _statistics_of(logits, labels, 4.0, 0))
    torch.testing.assert_close(ours.gradient(*given), _gradient_of(*given))


def _rows_of(logits: Tensor) -> Tensor:
    return torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)


_by_triton = opaque(_loss_statistics, lambda logits, *_: (_rows_of(logits), _rows_of(logits)))
_gradient_by_triton = opaque(
    _loss_gradient, lambda logits, *rest: logits.new_empty(logits.shape[0], rest[-1])
)


def linear_cross_entropy_backward(
    dlse: Tensor,
    dpicked: Tensor,
    x: Tensor,
    w: Tensor,
    labels: Tensor,
    lse: Tensor,
    logits: Tensor | None = None,
    *,
    softcap: float,
    start: int,
) -> tuple[Tensor, Tensor]:
    """(dx [..., I], dw [V, I]); dx is partial over the vocabulary shards. Without logits they are
    computed again."""
    dw = torch.zeros_like(w)
    given = dlse, dpicked, x, w, labels, lse, logits
    return add_linear_cross_entropy_backward(dw, *given, softcap=softcap, start=start), dw


def add_linear_cross_entropy_backward(
    grad: Tensor,
    dlse: Tensor,
    dpicked: Tensor,
    x: Tensor,
    w: Tensor,
    labels: Tensor,
    lse: Tensor,
    logits: Tensor | None = None,
    *,
    softcap: float,
    start: int,
) -> Tensor:
    """dx of linear_cross_entropy_backward; adds its dw to grad [V, I]."""
    x_TI = x.reshape(-1, x.shape[-1])
    size = _chunk(x_TI.shape[0], w)
    flat = (t.reshape(-1).split(size) for t in (dlse, dpicked, labels, lse))
    dx = []
    x_parts, whole = x_TI.split(size), _whole(w)
    if logits is None:
        parts: Iterable[Tensor] = _logits(x_parts, w)
    else:
        parts = logits.view(-1, w.shape[0]).split(size)
    for x_part, part, dl, dp, label, norm in zip(x_parts, parts, *flat, strict=True):
        dlogits = _dlogits(part, dl, dp, label, norm, softcap, start, whole.shape[0])
        dx.append(_both_grads(grad, dlogits, x_part, whole))
    return torch.cat(dx).view(x.shape)


def _linear_grads(dw: Tensor, dy: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """Return linear_input_grad(dy, w); adds linear_weight_grad(dy, x) to dw, whose rows are the
    first of w's."""
    for rows in _even_rows(dw.shape[0], ROWS.get(dw.device.type, 1)):
        add_linear_weight_grad(dw[rows], dy[:, rows], x)
    return linear_input_grad(dy, w)


def _even_rows(count: int, of: int) -> list[slice]:
    """Return the rows of a gradient up to a multiple of `of`, and those that are left. A matmul of
    GPT-2's 50,257 rows takes 0.89 ms, of 50,256 0.56 (5,341 tokens, an H200, 2026-11-28)."""
    even = count - count % of
    return [slice(*ends) for ends in ((0, even), (even, count)) if ends[0] < ends[1]]


# One op for both, as torch.compile would put off the matmuls of dx and hold every chunk's dlogits.
_both_grads = opaque(_linear_grads, lambda dw, dy, x, w: dy.new_empty(x.shape), mutates=("dw",))


def _dlogits(
    logits_TV: Tensor, dlse: Tensor, dpicked: Tensor, labels: Tensor, lse: Tensor,
    softcap: float, start: int, width: int,
) -> Tensor:  # fmt: skip
    """The gradient of logits, [T, width]: zeros behind the last column."""
    compute = _gradient_by_triton if _fused(logits_TV) else _gradient_of
    return compute(logits_TV, dlse, dpicked, labels, lse, softcap, start, width)


def _gradient_of(
    logits_TV: Tensor, dlse: Tensor, dpicked: Tensor, labels: Tensor, lse: Tensor,
    softcap: float, start: int, width: int,
) -> Tensor:  # fmt: skip
    logits, bounded = _capped(logits_TV, softcap)
    row, here = _local(labels, start, logits.shape[1])
    dlogits = torch.exp(logits - lse.unsqueeze(1)) * dlse.unsqueeze(1)
    columns = torch.arange(logits.shape[1], device=logits.device)
    hit = (columns.unsqueeze(0) == row.unsqueeze(1)) & here.unsqueeze(1)
    dlogits = dlogits + torch.where(hit, dpicked.unsqueeze(1), 0.0)
    if bounded is not None:
        dlogits = dlogits * (1.0 - bounded * bounded)
    dlogits = dlogits.to(logits_TV.dtype)
    missing = width - logits.shape[1]
    return torch.nn.functional.pad(dlogits, (0, missing)) if missing else dlogits
