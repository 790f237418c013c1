"""Sizes: integers or sympy expressions over named sizes (`B` micro-batch, `S` sequence).

A number that a model makes of sizes, such as 1 / S, is an expression of the same kind. Parts are
sums, products, powers, `floor`, `ceiling`, `Mod`, `Max` and `Min`; coefficients are rational.
"""

import re
from collections.abc import Callable
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


def smaller(a: Size, b: Size) -> Size:
    """Return the smaller of two sizes."""
    return simplify_size(sympy.Min(a, b))


# What torch's own functions of sizes are in sympy's words.
_PARTS: dict[str, Callable[..., sympy.Expr]] = {
    "FloorDiv": lambda a, b: sympy.floor(a / b),
    "CleanDiv": lambda a, b: sympy.floor(a / b),
    "CeilDiv": lambda a, b: sympy.ceiling(a / b),
    "IntTrueDiv": lambda a, b: a / b,
    "FloatTrueDiv": lambda a, b: a / b,
    "ToFloat": lambda a: a,
    "FloatPow": lambda a, b: a**b,
    "PowByNatural": lambda a, b: a**b,
    "OpaqueUnaryFn_sqrt": sympy.sqrt,
    "PythonMod": sympy.Mod,
    "Mod": sympy.Mod,
    "Max": sympy.Max,
    "Min": sympy.Min,
    "Abs": lambda a: sympy.Max(a, -a),
    "Add": sympy.Add,
    "Mul": sympy.Mul,
    "Pow": sympy.Pow,
    "floor": sympy.floor,
    "ceiling": sympy.ceiling,
}

# Whole parts of numbers; of none below zero, whose floor is another.
_WHOLE: dict[str, Callable[[sympy.Expr], sympy.Expr]] = {
    "TruncToInt": sympy.floor,
    "FloorToInt": sympy.floor,
    "CeilToInt": sympy.ceiling,
}
_UNROUNDED = "ToFloat Add Mul FloorDiv CleanDiv".split()


def size_of(expression: sympy.Expr) -> Size:
    """Return what torch calculates from sizes, in the words of this file.

    Raises ValueError for a function that has none here.
    """
    return simplify_size(_size_of(expression))


def _size_of(expression: sympy.Expr) -> sympy.Expr:
    if isinstance(expression, sympy.Float):
        return sympy.Rational(repr(float(expression)))
    if not expression.args:
        return expression
    name, parts = type(expression).__name__, [*map(_size_of, expression.args)]
    whole = name in _WHOLE and _is_exact(expression.args[0])
    part = _WHOLE[name] if whole else _PARTS.get(name)
    if part is None or (name == "TruncToInt" and not parts[0].is_nonnegative):
        raise ValueError(f"{name} of a size")
    return part(*parts)


def _is_exact(number: sympy.Expr) -> bool:
    """Return whether floats calculate a number so that its whole part is that of the exact one: a
    quotient of integers, or what is made without rounding."""
    quotient = type(number).__name__ == "IntTrueDiv"
    return quotient or not any(map(_rounds, sympy.preorder_traversal(number)))


def _rounds(part: sympy.Expr) -> bool:
    if isinstance(part, sympy.Float):
        return sympy.Rational(repr(float(part))) != sympy.Rational(float(part))
    return type(part).__name__ not in _UNROUNDED and bool(part.args)


@lru_cache(maxsize=65536)
def format_size(size: Size) -> str:
    """Return the text of a size, without blanks."""
    return str(size).replace(" ", "")


@lru_cache(maxsize=65536)
def parse_size(text: str) -> Size:
    """Inverse of format_size. Raises ParseError for anything but arithmetic over B and S."""
    if text.lstrip("-").isdigit():
        return int(text)
    # sympify evaluates its text as Python: only what a size is made of may reach it.
    if re.fullmatch(r"(?:[BS\d+\-*/()., ]|floor|ceiling|sqrt|Mod|Max|Min)+", text) is None:
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


def number_of(size: Size, values: dict[str, int]) -> int | float:
    """Return the number that a size takes for `values`, an int where it is one."""
    if isinstance(size, int):
        return size
    result = size.subs({SYMBOLS[name]: value for name, value in values.items()})
    return int(result) if result.is_Integer else float(result)


@lru_cache(maxsize=65536)
def num_elements(shape: Shape) -> Size:
    total: Size = 1
    for size in shape:
        total = total * size
    return total
