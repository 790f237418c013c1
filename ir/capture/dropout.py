"""Dropout as a semantic op: what falls is drawn by the kernel, from keys that the step gives.

draws: int64 [N, 3], keys of the N dropouts of a segment. rows: int64 [B, 2], of each row its key;
None where x holds no rows. number: of the dropout in its segment, in the order of the forward.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from .semantic import Grads, no_kernel


@custom_op("meshwright::dropout", mutates_args=())
def dropout(x: Tensor, draws: Tensor, rows: Tensor | None, p: float, number: int) -> Tensor:
    """x [...] -> the same shape: 0 with probability p, else divided by 1 - p."""
    raise no_kernel("dropout")


@dropout.register_fake
def _(x: Tensor, draws: Tensor, rows: Tensor | None, p: float, number: int) -> Tensor:
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, draws, rows, ctx.p, ctx.number = inputs
    ctx.save_for_backward(draws, rows)


def _backward(ctx: Any, dy: Tensor) -> Grads:
    draws, rows = ctx.saved_tensors
    return dropout(dy, draws, rows, ctx.p, ctx.number), None, None, None, None


dropout.register_autograd(_backward, setup_context=_setup)
