"""A forward under export in float64: what says no dtype, and what makes constants, is float64."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .initialisers import default_dtype

# What makes a tensor of numbers of Python, which a capture holds as a constant of some dtype.
CONSTANT_MAKERS = (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)


class _WideConstants(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        given = dict(kwargs or {})
        said = given.get("dtype")
        if func in CONSTANT_MAKERS and said is not None and said.is_floating_point:
            given["dtype"] = torch.float64
        return func(*args, **given)


@contextmanager
def floats_as_in(dtype: str) -> Iterator[None]:
    """Let a forward make float64 where a model is captured in "f64", else what torch makes."""
    if dtype != "f64":
        yield
        return
    with default_dtype(torch.float64), _WideConstants():
        yield
