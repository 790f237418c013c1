"""Functions of Python that take sizes under export as they take numbers: roots and logarithms.

torch gives a graph sizes as symbols, which `math` would turn into the number at hand.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_SYMBOLS = (torch.SymInt, torch.SymFloat)


def _root(x: Any) -> Any:
    return torch.sym_sqrt(x) if isinstance(x, _SYMBOLS) else _sqrt(x)


def _logarithm(x: Any, *base: Any) -> Any:
    """The natural one of a size is a tensor without dims, which is calculated with as a number is;
    in float64, which does not make others wider."""
    if not isinstance(x, _SYMBOLS):
        return _log(x, *base)
    natural = torch.scalar_tensor(x, dtype=torch.float64).log()  # type: ignore[arg-type]
    return natural / _logarithm(*base) if base else natural


_sqrt, _log = math.sqrt, math.log


@contextmanager
def sizes_as_numbers() -> Iterator[None]:
    """Let functions of sizes be functions of the symbols."""
    math.sqrt, math.log = _root, _logarithm
    try:
        yield
    finally:
        math.sqrt, math.log = _sqrt, _log
