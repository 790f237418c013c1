"""What crosses the boundary of a stage: a tensor, or a tuple where the plan's boundaries hold more.

An emitted stage describes it alike: (local shape, dtype), or a tuple of such pairs.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

Crossing: TypeAlias = Tensor | tuple[Tensor, ...]


def values_of(crossing: Crossing) -> tuple[Tensor, ...]:
    """Return the tensors that cross, in order."""
    return crossing if isinstance(crossing, tuple) else (crossing,)


def crossing_like(
    described: Any, make: Callable[[tuple[int, ...], torch.dtype], Tensor]
) -> Crossing:
    """Make each tensor that a stage's ENTRY or EXIT describes, from its local shape and dtype."""
    if isinstance(described[-1], torch.dtype):
        return make(*described)
    return tuple(make(*each) for each in described)
