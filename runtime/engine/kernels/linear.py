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
    dy_NO, x_NI = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])
    if grad.dtype == dy.dtype:
        grad.addmm_(dy_NO.t(), x_NI)
    elif grad.is_cuda and grad.dtype == torch.float32:
        # 1.24 ms in place of 1.41 (8,192 tokens, 14,336 x 4,096, an H200, 2026-11-23).
        torch.addmm(grad, dy_NO.t(), x_NI, out_dtype=grad.dtype, out=grad)
    else:
        grad.add_(dy_NO.t() @ x_NI)


_add = opaque(_add_linear_weight_grad, lambda grad, dy, x: None, mutates=("grad",))


def add_linear_weight_grad(grad: Tensor, dy: Tensor, x: Tensor) -> None:
    """Add linear_weight_grad(dy, x) to grad [O, I], in the matmul where both have one dtype, and on
    CUDA where grad is in float32.

    Opaque, as an addmm_ would become a matmul into another tensor and a copy of that.
    """
    _add(grad, dy, x)
