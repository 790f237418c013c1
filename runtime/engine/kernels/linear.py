"""Linear layers and their two gradients. Legend: N = all leading dims, I in, O out features."""

import torch
from torch import Tensor

from .opaque import opaque


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


def _add_linear_weight_grad(grad: Tensor, dy: Tensor, x: Tensor) -> None:
    if grad.dtype != dy.dtype:
        grad.add_(linear_weight_grad(dy, x))
        return
    dy_NO = dy.reshape(-1, dy.shape[-1])
    grad.addmm_(dy_NO.t(), x.reshape(-1, x.shape[-1]))


_add = opaque(_add_linear_weight_grad, lambda grad, dy, x: None, mutates=("grad",))


def add_linear_weight_grad(grad: Tensor, dy: Tensor, x: Tensor) -> None:
    """Add linear_weight_grad(dy, x) to grad [O, I], in the matmul where both have one dtype.

    Opaque, as an addmm_ would become a matmul into another tensor and a copy of that.
    """
    _add(grad, dy, x)
