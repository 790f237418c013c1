"""Composite ops, expanded into primitives the same on every device, by the definition's name."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import CaptureError
from . import semantic
from .dropout import dropout
from .sinks import attend_beside
from .symbolic import parts_of

aten = torch.ops.aten


def _linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    y = semantic.linear(x, w)
    return y if bias is None else y + bias


def _addmm(bias: Tensor, x: Tensor, w: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    return _added(bias, semantic.linear(x, w.t()), beta, alpha)


def _baddbmm(bias: Tensor, x: Tensor, y: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """By the op, `bias` is written out in the shape of the product and read again."""
    return _added(bias, torch.bmm(x, y), beta, alpha)


def _added(bias: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    """Return beta * bias + alpha * product; where beta is 0 nothing of a bias counts, NaN neither,
    but a bias that is trained has gradients of zeros."""
    product = product if alpha == 1 else product * alpha
    if beta == 0 and not bias.requires_grad:
        return product
    return product + (bias if beta == 1 else bias * beta)


def _embedding(
    w: Tensor,
    ids: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    if scale_grad_by_freq or sparse:
        raise CaptureError(
            f"embedding of {w.shape[0]} rows with scale_grad_by_freq={scale_grad_by_freq}, "
            f"sparse={sparse}: neither is supported; build it with both off"
        )
    return semantic.embedding(ids, w, padding_idx)


def _layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    normalized_shape: Sequence[int] = (),
    eps: float = 1e-5,
    **_: object,
) -> Tensor:
    dims = list(range(-len(normalized_shape), 0))
    h = x.to(semantic.statistics_dtype(x.dtype))
    h = h - h.mean(dims, keepdim=True)
    h = h * torch.rsqrt((h * h).mean(dims, keepdim=True) + eps)
    y = h if weight is None else h * weight
    return (y if bias is None else y + bias).to(x.dtype)


def _rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    normalized_shape: Sequence[int] = (),
    eps: float | None = None,
) -> Tensor:
    dims = list(range(-len(normalized_shape), 0))
    h = x.to(semantic.statistics_dtype(x.dtype))
    eps = torch.finfo(h.dtype).eps if eps is None else eps
    h = h * torch.rsqrt((h * h).mean(dims, keepdim=True) + eps)
    return (h if weight is None else h * weight).to(x.dtype)


def _group_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    num_groups: int = 1,
    eps: float = 1e-5,
    **_: object,
) -> Tensor:
    """x [N, C, ...], each of `num_groups` groups of channels normed by itself."""
    wide = x.to(semantic.statistics_dtype(x.dtype))
    h = wide.reshape(x.shape[0], num_groups, -1)
    h = h - h.mean(-1, keepdim=True)
    h = h * torch.rsqrt((h * h).mean(-1, keepdim=True) + eps)
    channels = (1, -1, *(1 for _ in x.shape[2:]))
    y = h.reshape(x.shape)
    y = y if weight is None else y * weight.reshape(channels)
    return (y if bias is None else y + bias.reshape(channels)).to(x.dtype)


def _split(x: Tensor, split_size: int | list[int], dim: int = 0) -> tuple[Tensor, ...]:
    if isinstance(split_size, list):
        sizes = split_size
    else:
        parts = parts_of(x.shape[dim], split_size)
        whole, rest = (parts, 0) if parts else divmod(x.shape[dim], split_size)
        sizes = [split_size] * whole + [rest] * (rest > 0)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(aten.slice(x, dim, a, a + n) for a, n in zip(starts, sizes, strict=True))


def _split_sizes(x: Tensor, split_sizes: list[int], dim: int = 0) -> tuple[Tensor, ...]:
    return _split(x, split_sizes, dim)


def _chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    return _split(x, -(-x.shape[dim] // chunks), dim)


def _unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(x.select(dim, i) for i in range(x.shape[dim]))


def _sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention of torch: the semantic op where it says the same, else in primitives."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    same_length = q.shape[-2] is k.shape[-2] or q.shape[-2] == k.shape[-2]
    grouped = enable_gqa or q.shape[-3] == k.shape[-3]
    if attn_mask is None and q.dim() == k.dim() == 4 and same_length and grouped:
        return semantic.attention(q, k, v, float(scale), bool(is_causal), 0, 0.0)[0]
    return _dense_attention(q, k, v, attn_mask, is_causal, float(scale))


def _drawn_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None,
    draws: Tensor,
    rows: Tensor | None = None,
    *,
    p: float,
    number: int,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention of torch with dropout of the weights."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    given = q, k, v, attn_mask, is_causal, float(scale)
    return _dense_attention(*given, lambda shares: dropout(shares, draws, rows, p, number))


def _drawn_channels(
    x: Tensor, draws: Tensor, rows: Tensor | None = None, *, p: float, number: int
) -> Tensor:
    """x [N, C, ...] of which whole channels fall: each element of a channel by one draw."""
    ones = x.new_ones((*x.shape[:2], *(1 for _ in x.shape[2:])))
    return x * dropout(ones, draws, rows, p, number)


def _itself(x: Tensor) -> Tensor:
    return x


def _dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float,
    dropped: Callable[[Tensor], Tensor] = _itself,
) -> Tensor:
    """softmax(q k^T scale, masked) v with every score held; softmax in float32 at least.

    mask: bool, of which False is not attended to, or added to the scores. A row that attends to
    nothing, of a mask that is -inf everywhere, gives zeros. dropped: what dropout leaves of the
    weights.
    """
    if q.dim() > 2 and q.shape[-3] != k.shape[-3]:
        groups = q.shape[-3] // k.shape[-3]
        k, v = k.repeat_interleave(groups, -3), v.repeat_interleave(groups, -3)
    wide = semantic.statistics_dtype(q.dtype)
    scores = torch.matmul(q, k.transpose(-2, -1)).to(wide) * scale
    if is_causal:
        rows, columns = (torch.arange(n, device=q.device) for n in (q.shape[-2], k.shape[-2]))
        mask = columns[None, :] <= rows[:, None]
    if mask is None:
        return torch.matmul(dropped(torch.softmax(scores, -1).to(q.dtype)), v)
    if mask.dtype is torch.bool:
        attends = mask.any(-1, keepdim=True)
        shown = torch.where(mask | ~attends, scores, -torch.inf)
    else:
        attends = (mask > -torch.inf).any(-1, keepdim=True)
        shown = scores + torch.where(attends, mask, 0.0)
    shares = torch.where(attends, torch.softmax(shown, -1), 0.0)
    return torch.matmul(dropped(shares.to(q.dtype)), v)


class _CumulativeProduct(torch.autograd.Function):
    """torch's cumprod, with a backward for every length: torch's own counts zeros by hand.

    Of y_j = x_1 .. x_j, dx_i = sum over j >= i of dy_j y_j / x_i. Where x_i is the first zero, the
    product without it stands for y_j / x_i; past that zero every term is 0.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        y = torch.cumprod(x, dim)
        ctx.dim = dim
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        x, y = ctx.saved_tensors
        zero = x == 0
        first = zero & (torch.cumsum(zero, ctx.dim) == 1)
        without = torch.cumprod(torch.where(first, 1.0, x), ctx.dim)
        divided = _sum_from(dy * y, ctx.dim) / torch.where(zero, 1.0, x)
        return torch.where(first, _sum_from(dy * without, ctx.dim), divided), None


def _sum_from(x: Tensor, dim: int) -> Tensor:
    """Sums of each element and all behind it."""
    return torch.cumsum(x.flip(dim), dim).flip(dim)


def _cumprod(x: Tensor, dim: int = 0, dtype: torch.dtype | None = None) -> Tensor:
    return _CumulativeProduct.apply(x if dtype is None else x.to(dtype), dim)


EXPANSIONS: dict[str, Callable] = {
    "cumprod": _cumprod,
    "linear": _linear,
    "addmm": _addmm,
    "baddbmm": _baddbmm,
    "embedding": _embedding,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "split.Tensor": _split,
    "split.sizes": _split,
    "split_with_sizes": _split_sizes,
    "chunk": _chunk,
    "unbind.int": _unbind,
    "scaled_dot_product_attention": _sdpa,
    "drawn_attention": _drawn_attention,
    "drawn_channels": _drawn_channels,
    "mw.sink_attention": attend_beside,
}
