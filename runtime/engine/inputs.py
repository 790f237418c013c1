"""What a micro-batch gives to the model, made of its tokens and labels."""

from collections.abc import Callable

import torch
from torch import Tensor

from .layout import Input


def _positions(tokens: Tensor, labels: Tensor) -> Tensor:
    return torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)


# By role, from tokens and labels [B, S]; the executor adds the denominator.
_MAKERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "tokens": lambda tokens, labels: tokens,
    "labels": lambda tokens, labels: labels,
    "positions": _positions,
}


def batch_of(inputs: tuple[Input, ...], tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return by role what the inputs of a program ask for, of one micro-batch on its device.

    tokens, labels: int64 [B, S].
    """
    return {i.role: _MAKERS[i.role](tokens, labels) for i in inputs if i.role in _MAKERS}
