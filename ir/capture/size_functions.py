"""Functions of Python that take sizes under export as they take numbers: roots, powers and so on.

torch gives a graph sizes as symbols, which `math` would turn into the number at hand.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_SYMBOLS = (torch.SymInt, torch.SymFloat)
# By their names in `math` and in torch.
_OF_ONE = """
    exp exp2 expm1 log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh
    erf erfc
""".split()


def _of_sizes(x: Any) -> bool:
    """Whether a number is a symbol, or what these functions make of one."""
    made = isinstance(x, Tensor) and x.dim() == 0 and x.dtype is torch.float64
    return isinstance(x, _SYMBOLS) or (made and not x.requires_grad)


def _number(x: Any) -> Tensor:
    """A tensor without dims, which is calculated with as a number is; in float64, which does not
    make others wider."""
    return x if isinstance(x, Tensor) else torch.scalar_tensor(x, dtype=torch.float64)


def _root(x: Any) -> Any:
    if isinstance(x, _SYMBOLS):
        return torch.sym_sqrt(x)
    return x.sqrt() if _of_sizes(x) else _sqrt(x)


def _logarithm(x: Any, *base: Any) -> Any:
    if not any(map(_of_sizes, (x, *base))):
        return _log(x, *base)
    natural = _number(x).log() if _of_sizes(x) else _log(x)
    return natural / _logarithm(*base) if base else natural


def _power(x: Any, exponent: Any) -> Any:
    if not (_of_sizes(x) or _of_sizes(exponent)):
        return _pow(x, exponent)
    return torch.pow(_number(x), _number(exponent))


def _of_one(name: str) -> Callable[[Any], Any]:
    plain, of_tensor = getattr(math, name), getattr(torch, name)
    return lambda x: of_tensor(_number(x)) if _of_sizes(x) else plain(x)


_sqrt, _log, _pow = math.sqrt, math.log, math.pow
_FUNCTIONS: dict[str, Callable] = {
    **{name: _of_one(name) for name in _OF_ONE},
    "sqrt": _root,
    "log": _logarithm,
    "pow": _power,
}
_PLAIN = {name: getattr(math, name) for name in _FUNCTIONS}


@contextmanager
def sizes_as_numbers(used: list[str]) -> Iterator[None]:
    """Let functions of sizes be functions of the symbols. used: takes the names of those that made
    a tensor of one, by which torch lets nothing decide."""
    for name, function in _FUNCTIONS.items():
        setattr(math, name, _noted(function, name, used))
    try:
        yield
    finally:
        for name, plain in _PLAIN.items():
            setattr(math, name, plain)


def _noted(function: Callable, name: str, used: list[str]) -> Callable:
    def call(*given: Any) -> Any:
        made = function(*given)
        if isinstance(made, Tensor):
            used.append(name)
        return made

    return call
