"""Layers that a stock class casts as a whole, with their parameters, in its own forward.

`self.classifier = self.classifier.to(dtype)` in a router swaps parameters, which an export refuses.
For the time of a forward such a layer casts its parameters where it is called: they keep the dtype
that they are stored in.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@contextmanager
def casting_apart() -> Iterator[None]:
    """Let `to(dtype)` of a linear layer leave its parameters, and cast them in its forward."""
    nn.Linear.to = _to  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del nn.Linear.to


def _to(layer: nn.Linear, *args: Any, **kwargs: Any) -> nn.Module:
    if len(args) != 1 or not isinstance(args[0], torch.dtype) or kwargs:
        return nn.Module.to(layer, *args, **kwargs)
    layer.forward = partial(_forward, layer, args[0])  # type: ignore[method-assign]
    return layer


def _forward(layer: nn.Linear, dtype: torch.dtype, x: Tensor) -> Tensor:
    bias = None if layer.bias is None else layer.bias.to(dtype)
    return F.linear(x, layer.weight.to(dtype), bias)
