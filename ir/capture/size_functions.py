"""Functions of Python that take sizes under export as they take numbers: roots, logarithms, hashes.

torch gives a graph sizes as symbols, which `math` would turn into the number at hand, and which
neither a dictionary nor functools.lru_cache takes as a key.
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


def _hash(size: torch.SymInt) -> int:
    """Of the expression, and of the export that it belongs to."""
    return hash((size.node.expr, id(size.node.shape_env)))


_sqrt, _log, _hash_of_torch = math.sqrt, math.log, torch.SymInt.__hash__


@contextmanager
def sizes_as_numbers() -> Iterator[None]:
    """Let functions of sizes be functions of the symbols, and symbols be keys."""
    math.sqrt, math.log = _root, _logarithm
    torch.SymInt.__hash__ = _hash  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        math.sqrt, math.log = _sqrt, _log
        torch.SymInt.__hash__ = _hash_of_torch  # type: ignore[method-assign]
