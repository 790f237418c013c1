"""A choice by a bias as a semantic op: router_bias.py says what it is for.

It returns its first operand, which the indices chose. Its backward gives the bias the excess of
choices: E times those of an expert, less all choices.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from .semantic import Grads, no_kernel


@custom_op("meshwright::biased_choice", mutates_args=())
def biased_choice(values: Tensor, ids: Tensor, bias: Tensor) -> Tensor:
    """values, of any shape; ids, int64, that the bias of E elements chose -> values."""
    raise no_kernel("biased_choice")


@biased_choice.register_fake
def _(values: Tensor, ids: Tensor, bias: Tensor) -> Tensor:
    return torch.empty_like(values)


@custom_op("meshwright::biased_choice_backward", mutates_args=())
def biased_choice_backward(ids: Tensor, num_experts: int, double: bool) -> Tensor:
    """ids -> the excess of choices, [E], float32 or float64."""
    raise no_kernel("biased_choice_backward")


@biased_choice_backward.register_fake
def _(ids: Tensor, num_experts: int, double: bool) -> Tensor:
    dtype = torch.float64 if double else torch.float32
    return torch.empty(num_experts, dtype=dtype, device=ids.device)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, ids, bias = inputs
    ctx.save_for_backward(ids)
    ctx.shape, ctx.double = bias.shape, bias.dtype is torch.float64


def _backward(ctx: Any, dy: Tensor) -> Grads:
    (ids,) = ctx.saved_tensors
    excess = biased_choice_backward(ids, ctx.shape.numel(), ctx.double)
    return dy, None, excess if len(ctx.shape) == 1 else excess.reshape(ctx.shape)


biased_choice.register_autograd(_backward, setup_context=_setup)
