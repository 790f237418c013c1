"""Composite ops, expanded into primitives the same on every device, by the definition's name."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..errors import CaptureError
from . import semantic

aten = torch.ops.aten


def _linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    y = semantic.linear(x, w)
    return y if bias is None else y + bias


def _addmm(bias: Tensor, x: Tensor, w: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    y = semantic.linear(x, w.t())
    y = y if alpha == 1 else y * alpha
    return y + (bias if beta == 1 else bias * beta)


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
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    h = h * torch.rsqrt((h * h).mean(dims, keepdim=True) + eps)
    return (h if weight is None else h * weight).to(x.dtype)


def _split(x: Tensor, split_size: int | list[int], dim: int = 0) -> tuple[Tensor, ...]:
    if isinstance(split_size, list):
        sizes = split_size
    else:
        whole, rest = divmod(x.shape[dim], split_size)
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
    assert attn_mask is None and dropout_p == 0.0, "masked attention is refused at capture"
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return semantic.attention(q, k, v, float(scale), bool(is_causal), 0, 0.0)[0]


EXPANSIONS: dict[str, Callable] = {
    "linear": _linear,
    "addmm": _addmm,
    "embedding": _embedding,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "split.Tensor": _split,
    "split.sizes": _split,
    "split_with_sizes": _split_sizes,
    "chunk": _chunk,
    "unbind.int": _unbind,
    "scaled_dot_product_attention": _sdpa,
}
