"""Attention with sinks: a score of each head, or query, that takes a share and gives no value.

A sink z widens the log-sum-exp L of a query's scores to L' = log(e^L + e^z) and leaves e^(L - L')
of its output. A softmax over the scores and the sink has the gradients of attention whose output
and log-sum-exp are these: dz = -sum of e^(z - L') (do . o), as the sink's value is 0. So the op is
expanded into attention as it is without sinks, whose kernels hold no scores, and pointwise ops.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from . import semantic


@custom_op("meshwright::sink_attention", mutates_args=())
def sink_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
) -> Tensor:
    """q [B, H, S, D], k v [B, K, S, D], sinks [H] or [B, H, S, 1] -> o [B, H, S, D].

    The other arguments are those of `semantic.attention`.
    """
    raise semantic.no_kernel("sink_attention")


@sink_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def attend_beside(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
) -> Tensor:
    """Expand `sink_attention`."""
    return _Beside.apply(q, k, v, sinks, (scale, causal, window, softcap))


class _Beside(torch.autograd.Function):
    """The output and log-sum-exp of all keys and the sink are what backward needs."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, rule: tuple[Any, ...]
    ) -> Tensor:
        o, keys = semantic.attention(q, k, v, *rule)
        z = _of_queries(sinks).to(keys.dtype)
        high, low = torch.maximum(keys, z), torch.minimum(keys, z)
        every = high + torch.log1p(torch.exp(low - high))
        o = (o.to(keys.dtype) * torch.exp(keys - every).unsqueeze(-1)).to(o.dtype)
        ctx.save_for_backward(q, k, v, sinks, o, every)
        ctx.rule = rule
        return o

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, o, every = ctx.saved_tensors
        dq, dk, dv = semantic.attention_backward(do, q, k, v, o, every, *ctx.rule)
        z = _of_queries(sinks).to(every.dtype)
        along = (do.to(every.dtype) * o.to(every.dtype)).sum(-1)
        dz = -torch.exp(z - every) * along  # [B, H, S]
        dsinks = dz.sum((0, 2)) if sinks.dim() == 1 else dz.unsqueeze(-1)
        return dq, dk, dv, dsinks.to(sinks.dtype), None


def _of_queries(sinks: Tensor) -> Tensor:
    """Return sinks that broadcast to [B, H, S]."""
    return sinks.reshape(-1, 1) if sinks.dim() == 1 else sinks.squeeze(-1)
