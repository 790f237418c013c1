"""A recurrence over the sequence as a semantic op: linear attention, scans, delta rules.

Of each head the state [K, V] is

    P_t = exp(g_t) S_(t-1)                     the decay, by row or one for all
    S_t = P_t + k_t u_t                        u_t = beta_t (v_t - k_t P_t), or beta_t v_t
    o_t = q_t S_t

Mamba-2 (Dao and Gu 2024, arXiv 2405.21060, section 3) is q = C, k = B, v = x, beta = dt, g = dt A.
In Mamba (Gu and Dao 2023, arXiv 2312.00752) each channel is a head with V = 1 and a decay by row.
The other form of u is the gated delta rule (Yang et al. 2024, arXiv 2412.06464).
"""

from typing import Any

from torch import Tensor
from torch.library import custom_op

from .semantic import Grads, no_kernel


@custom_op("meshwright::recurrence", mutates_args=())
def recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, delta: bool) -> Tensor:
    """q k [B, S, H, K], v [B, S, H, V], g [B, S, H, K] or [B, S, H], beta [B, S, H] -> as v."""
    raise no_kernel("recurrence")


@recurrence.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, delta: bool) -> Tensor:
    return v.new_empty(v.shape)


@custom_op("meshwright::recurrence_backward", mutates_args=())
def recurrence_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, delta: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of a recurrence: shapes of q, k, v, g, beta."""
    raise no_kernel("recurrence_backward")


@recurrence_backward.register_fake
def _(do: Tensor, *operands: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in operands[:5])


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    *operands, ctx.delta = inputs
    ctx.save_for_backward(*operands)


def _backward(ctx: Any, do: Tensor) -> Grads:
    return (*recurrence_backward(do, *ctx.saved_tensors, ctx.delta), None)


recurrence.register_autograd(_backward, setup_context=_setup)
