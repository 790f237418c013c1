"""Semantic ops: kept whole from capture to kernel because the planner must see them whole.

Declared here only: schema, fake, backward rule. Kernels (runtime/engine/kernels) are plain
functions of the same names; a test holds the two lists equal. Shapes: B batch, S sequence, H query
heads, K key/value heads, D head dim, I/O features, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

IGNORED_LABEL = -100
Grads = tuple[Tensor | None, ...]


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of log-sum-exps and losses: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def no_kernel(name: str) -> RuntimeError:
    """Return what a semantic op raises where it is called with real tensors."""
    return RuntimeError(f"meshwright::{name} is traced, never run; see runtime/engine/kernels")


@custom_op("meshwright::linear", mutates_args=())
def linear(x: Tensor, w: Tensor) -> Tensor:
    """x [..., I], w [O, I] -> [..., O]."""
    raise no_kernel("linear")


@linear.register_fake
def _(x: Tensor, w: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], w.shape[0]))


@custom_op("meshwright::linear_input_grad", mutates_args=())
def linear_input_grad(dy: Tensor, w: Tensor) -> Tensor:
    """dy [..., O], w [O, I] -> dx [..., I]."""
    raise no_kernel("linear_input_grad")


@linear_input_grad.register_fake
def _(dy: Tensor, w: Tensor) -> Tensor:
    return dy.new_empty((*dy.shape[:-1], w.shape[1]))


@custom_op("meshwright::linear_weight_grad", mutates_args=())
def linear_weight_grad(dy: Tensor, x: Tensor) -> Tensor:
    """dy [..., O], x [..., I] -> dw [O, I], summed over all leading dims."""
    raise no_kernel("linear_weight_grad")


@linear_weight_grad.register_fake
def _(dy: Tensor, x: Tensor) -> Tensor:
    return dy.new_empty((dy.shape[-1], x.shape[-1]))


def _linear_setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _linear_backward(ctx: Any, dy: Tensor) -> Grads:
    x, w = ctx.saved_tensors
    dx = linear_input_grad(dy, w) if ctx.needs_input_grad[0] else None
    return dx, linear_weight_grad(dy, x) if ctx.needs_input_grad[1] else None


linear.register_autograd(_linear_backward, setup_context=_linear_setup)


@custom_op("meshwright::embedding", mutates_args=())
def embedding(ids: Tensor, w: Tensor, padding_idx: int = -1) -> Tensor:
    """ids [...], w [V, D] -> [..., D]. padding_idx: the row that learns nothing here, -1: none."""
    raise no_kernel("embedding")


@embedding.register_fake
def _(ids: Tensor, w: Tensor, padding_idx: int = -1) -> Tensor:
    return w.new_empty((*ids.shape, w.shape[1]))


@custom_op("meshwright::embedding_weight_grad", mutates_args=())
def embedding_weight_grad(
    dy: Tensor, ids: Tensor, num_embeddings: int, padding_idx: int = -1
) -> Tensor:
    """dy [..., D], ids [...] -> dw [V, D], 0 in row padding_idx."""
    raise no_kernel("embedding_weight_grad")


@embedding_weight_grad.register_fake
def _(dy: Tensor, ids: Tensor, num_embeddings: int, padding_idx: int = -1) -> Tensor:
    return dy.new_empty((num_embeddings, dy.shape[-1]))


def _embedding_setup(ctx: Any, inputs: Any, output: Any) -> None:
    ids, w, ctx.padding_idx = inputs
    ctx.save_for_backward(ids)
    ctx.num_embeddings = w.shape[0]


def _embedding_backward(ctx: Any, dy: Tensor) -> Grads:
    (ids,) = ctx.saved_tensors
    dw = embedding_weight_grad(dy, ids, ctx.num_embeddings, ctx.padding_idx)
    return None, dw, None


embedding.register_autograd(_embedding_backward, setup_context=_embedding_setup)


@custom_op("meshwright::attention", mutates_args=())
def attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, window: int, softcap: float
) -> tuple[Tensor, Tensor]:
    """q [B, H, S, D], k v [B, K, S, D] -> (o [B, H, S, D], log-sum-exp [B, H, S]).

    window 0: none, else query i sees keys j with i - window < j <= i. softcap 0: none.
    """
    raise no_kernel("attention")


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    shape = (*q.shape[:-1], v.shape[-1])
    return q.new_empty(shape), q.new_empty(q.shape[:-1], dtype=statistics_dtype(q.dtype))


@custom_op("meshwright::attention_backward", mutates_args=())
def attention_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of attention: shapes of q, k, v."""
    raise no_kernel("attention_backward")


@attention_backward.register_fake
def _(do: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _attention_setup(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, *ctx.options = inputs
    o, lse = output
    ctx.save_for_backward(q, k, v, o, lse)


def _attention_backward(ctx: Any, do: Tensor, dlse: Tensor) -> Grads:
    q, k, v, o, lse = ctx.saved_tensors
    dq, dk, dv = attention_backward(do, q, k, v, o, lse, *ctx.options)
    return dq, dk, dv, None, None, None, None


attention.register_autograd(_attention_backward, setup_context=_attention_setup)


@custom_op("meshwright::linear_cross_entropy", mutates_args=())
def linear_cross_entropy(
    x: Tensor, w: Tensor, labels: Tensor, softcap: float
) -> tuple[Tensor, Tensor, Tensor]:
    """x [B, S, I], w [V, I], labels [B, S] -> (log-sum-exp [B, S], logit of the label [B, S],
    logits [B, S, V] before the cap, which exist where they are kept for backward).

    Ignored labels give a logit of 0. Statistics are at least float32. softcap 0: none.
    """
    raise no_kernel("linear_cross_entropy")


@linear_cross_entropy.register_fake
def _(x: Tensor, w: Tensor, labels: Tensor, softcap: float) -> tuple[Tensor, Tensor, Tensor]:
    lse, picked = (x.new_empty(labels.shape, dtype=statistics_dtype(x.dtype)) for _ in range(2))
    return lse, picked, x.new_empty((*labels.shape, w.shape[0]))


@custom_op("meshwright::linear_cross_entropy_backward", mutates_args=())
def linear_cross_entropy_backward(
    dlse: Tensor,
    dpicked: Tensor,
    x: Tensor,
    w: Tensor,
    labels: Tensor,
    lse: Tensor,
    logits: Tensor | None,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    """dlse, dpicked [B, S] -> (dx [B, S, I], dw [V, I]); without logits they are computed again."""
    raise no_kernel("linear_cross_entropy_backward")


@linear_cross_entropy_backward.register_fake
def _(dlse: Tensor, dpicked: Tensor, x: Tensor, w: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(w)


def _cross_entropy_setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, w, labels, ctx.softcap = inputs
    ctx.save_for_backward(x, w, labels, output[0], output[2])


def _cross_entropy_backward(ctx: Any, dlse: Tensor, dpicked: Tensor, _: Tensor) -> Grads:
    given = dlse, dpicked, *ctx.saved_tensors
    dx, dw = linear_cross_entropy_backward(*given, ctx.softcap)
    return dx, dw, None, None


linear_cross_entropy.register_autograd(_cross_entropy_backward, setup_context=_cross_entropy_setup)
