"""Sizes: integers or sympy expressions over named sizes (`B` micro-batch, `S` sequence)."""

import re
from functools import lru_cache
from typing import Any, TypeAlias

import sympy

from .errors import ParseError

B = sympy.Symbol("B", integer=True, positive=True)
S = sympy.Symbol("S", integer=True, positive=True)
SYMBOLS = {"B": B, "S": S}

# int or sympy.Expr; sympy has no types to check, so arithmetic on sizes is unchecked.
Size: TypeAlias = Any
Shape: TypeAlias = tuple[Size, ...]


def is_symbolic(value: object) -> bool:
    """Return whether an attribute is a size over B and S."""
    return isinstance(value, sympy.Expr)


def simplify_size(size: object) -> Size:
    """An int where the size is a number, a sympy expression otherwise."""
    if isinstance(size, int):
        return size
    expr = sympy.sympify(size)
    return int(expr) if expr.is_Integer else expr


def format_size(size: Size) -> str:
    return str(size).replace(" ", "")


def parse_size(text: str) -> Size:
    """Inverse of format_size. Raises ParseError for anything but arithmetic over B and S."""
    if text.lstrip("-").isdigit():
        return int(text)
    # sympify evaluates its text as Python: only what a size is made of may reach it.
    if re.fullmatch(r"(?:[BS\d+\-*/(). ]|floor|ceiling)+", text) is None:
        raise ParseError(f"not a size over B and S: {text!r}")
    return simplify_size(sympy.sympify(text, locals=SYMBOLS))


def evaluate(size: Size, values: dict[str, int]) -> int:
    """The integer a size takes for `values`, e.g. {"B": 2, "S": 128}.

    Raises ValueError when the result is not an integer (a split that does not divide).
    """
    if isinstance(size, int):
        return size
    result = size.subs({SYMBOLS[name]: value for name, value in values.items()})
    if not result.is_Integer:
        raise ValueError(f"size {size} is {result} for {values}, not an integer")
    return int(result)


@lru_cache(maxsize=65536)
def num_elements(shape: Shape) -> Size:
    total: Size = 1
    for size in shape:
        total = total * size
    return total
