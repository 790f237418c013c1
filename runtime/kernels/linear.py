"""Linear layers and their two gradients. Legend: N = all leading dims, I in, O out features."""

import torch
from torch import Tensor


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
