"""Experts as semantic ops: each row multiplied by the matrix of the expert that it is sent to.

Which rows an expert gets is known to the kernel alone, so that every shape is one of B and S.
Legend: N leading dims of tokens, K choices of a token, E experts, I/O features. A weight is
[E, O, I], or [E, I, O] where `transposed`. A row that is sent to no expert of the E gives 0.
"""

from typing import Any

from torch import Tensor
from torch.library import custom_op

from .semantic import Grads, no_kernel


@custom_op("meshwright::expert_linear", mutates_args=())
def expert_linear(x: Tensor, w: Tensor, ids: Tensor, transposed: bool) -> Tensor:
    """x [N, K, I], or [N, I] for all choices of a token, ids [N, K] -> [N, K, O]."""
    raise no_kernel("expert_linear")


@expert_linear.register_fake
def _(x: Tensor, w: Tensor, ids: Tensor, transposed: bool) -> Tensor:
    return x.new_empty((*ids.shape, w.shape[2 if transposed else 1]))


@custom_op("meshwright::expert_linear_input_grad", mutates_args=())
def expert_linear_input_grad(
    dy: Tensor, w: Tensor, ids: Tensor, transposed: bool, shared: bool
) -> Tensor:
    """dy [N, K, O] -> dx [N, K, I]; summed to [N, I] where choices shared x."""
    raise no_kernel("expert_linear_input_grad")


@expert_linear_input_grad.register_fake
def _(dy: Tensor, w: Tensor, ids: Tensor, transposed: bool, shared: bool) -> Tensor:
    rows = ids.shape[:-1] if shared else ids.shape
    return dy.new_empty((*rows, w.shape[1 if transposed else 2]))


@custom_op("meshwright::expert_linear_weight_grad", mutates_args=())
def expert_linear_weight_grad(
    dy: Tensor, x: Tensor, ids: Tensor, num_experts: int, transposed: bool
) -> Tensor:
    """dy [N, K, O], x as forward takes it -> dw, of the shape of w."""
    raise no_kernel("expert_linear_weight_grad")


@expert_linear_weight_grad.register_fake
def _(dy: Tensor, x: Tensor, ids: Tensor, num_experts: int, transposed: bool) -> Tensor:
    features = dy.shape[-1], x.shape[-1]
    return dy.new_empty((num_experts, *(features[::-1] if transposed else features)))


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, w, ids, ctx.transposed = inputs
    ctx.save_for_backward(x, w, ids)


def _backward(ctx: Any, dy: Tensor) -> Grads:
    x, w, ids = ctx.saved_tensors
    dx = dw = None
    if ctx.needs_input_grad[0]:
        shared = x.dim() == ids.dim()
        dx = expert_linear_input_grad(dy, w, ids, ctx.transposed, shared)
    if ctx.needs_input_grad[1]:
        dw = expert_linear_weight_grad(dy, x, ids, w.shape[0], ctx.transposed)
    return dx, dw, None, None


expert_linear.register_autograd(_backward, setup_context=_setup)
