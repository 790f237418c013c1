"""Sizes as torch calculates with them while it traces: numbers that stand for any B and S."""

import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import sympy
import torch

from ..sizes import Size


def concrete(size: Size, values: Mapping[str, Any]) -> Any:
    """Return a size for `values` of B and S, which may be ints or torch's symbolic ones."""
    if not isinstance(size, sympy.Expr):
        return size
    if size.is_Symbol:
        return values[str(size)]
    if size.is_Rational:
        return int(size.p) if size.q == 1 else size.p / size.q
    top, bottom = size.as_numer_denom()
    if bottom != 1:
        return _quotient(concrete(top, values), concrete(bottom, values))
    return _PARTS[size.func](size, values)


def expression_of(size: Any) -> sympy.Basic:
    """Return a size of torch, or a condition on sizes, as an expression."""
    return sympy.sympify(getattr(getattr(size, "node", size), "expr", size))


def sizes_of(value: torch.Tensor) -> list[sympy.Expr]:
    """Return a shape as expressions. Compared as torch's symbols are, sizes that are equal at the
    numbers at hand would be taken for equal from there on."""
    return [*map(expression_of, value.shape)]


def parts_of(size: Any, part: Any) -> int | None:
    """Return how often a part is in a size, one of which is symbolic; None where that depends on
    sizes, or is not whole."""
    if not (isinstance(size, torch.SymInt) or isinstance(part, torch.SymInt)):
        return None
    ratio = sympy.cancel(expression_of(size) / expression_of(part))
    return int(ratio) if ratio.is_Integer else None


def _quotient(top: Any, bottom: Any) -> Any:
    """The whole number where S is a multiple of what it is divided by."""
    symbolic = isinstance(top, torch.SymInt) and isinstance(bottom, int)
    whole = symbolic and sympy.expand(expression_of(top) / bottom).is_integer
    return top // bottom if whole else top / bottom


def _folded(combine: Callable[[Any, Any], Any]) -> Callable[[sympy.Expr, Mapping], Any]:
    return lambda size, values: reduce(combine, (concrete(part, values) for part in size.args))


def _power(size: sympy.Expr, values: Mapping[str, Any]) -> Any:
    root, exponent = (concrete(part, values) for part in size.args)
    return torch.sym_sqrt(root) if exponent == 0.5 else root**exponent


def _floor(size: sympy.Expr, values: Mapping[str, Any]) -> Any:
    top, bottom = (concrete(part, values) for part in size.args[0].as_numer_denom())
    return top // bottom


def _ceiling(size: sympy.Expr, values: Mapping[str, Any]) -> Any:
    top, bottom = (concrete(part, values) for part in size.args[0].as_numer_denom())
    return -(-top // bottom)


_PARTS: dict[Any, Callable[[sympy.Expr, Mapping], Any]] = {
    sympy.Add: _folded(operator.add),
    sympy.Mul: _folded(operator.mul),
    sympy.Mod: _folded(operator.mod),
    sympy.Max: _folded(torch.sym_max),
    sympy.Min: _folded(torch.sym_min),
    sympy.Pow: _power,
    sympy.floor: _floor,
    sympy.ceiling: _ceiling,
}
