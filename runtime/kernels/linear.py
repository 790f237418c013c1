"""Linear layers and their two gradients. Legend: N = all leading dims, I in, O out features."""

import torch
from torch import Tensor
from torch.library import custom_op


def linear(x: Tensor, w: Tensor) -> Tensor:
    """x [..., I], w [O, I] -> [..., O]."""
    return torch.nn.functional.linear(x, w)


def linear_input_grad(dy: Tensor, w: Tensor) -> Tensor:
    """dy [..., O], w [O, I] -> [..., I]."""
    return torch.matmul(dy, w)


def linear_weight_grad(dy: Tensor, x: Tensor) -> Tensor:
    """dy [..., O], x [..., I] -> [O, I]."""
    dy_NO = dy.reshape(-1, dy.shape[-1])
    return dy_NO.t() @ x.reshape(-1, x.shape[-1])


@custom_op("meshwright_runtime::add_linear_weight_grad", mutates_args=("grad",))
def add_linear_weight_grad(grad: Tensor, dy: Tensor, x: Tensor) -> None:
    """Adds linear_weight_grad(dy, x) to grad [O, I], in the matmul where both have one dtype.

    An op of its own, so that torch.compile leaves it in place: an addmm_ would become a matmul
    into another tensor and a copy of that.
    """
    if grad.dtype != dy.dtype:
        grad.add_(linear_weight_grad(dy, x))
        return
    dy_NO = dy.reshape(-1, dy.shape[-1])
    grad.addmm_(dy_NO.t(), x.reshape(-1, x.shape[-1]))


@add_linear_weight_grad.register_fake
def _(grad: Tensor, dy: Tensor, x: Tensor) -> None:
    return None
