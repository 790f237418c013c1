"""Sizes and counts over B and S as numbers."""

from math import prod

from meshwright.ir.sizes import SYMBOLS, Size


def number(size: Size, sizes: dict[str, int]) -> float:
    """Return a size or count for {"B": rows, "S": tokens}; halves stay halves."""
    return float(size if isinstance(size, int) else _value(size, sizes))


def _value(size: Size, sizes: dict[str, int]) -> float:
    """Walk the expression: substitution in sympy takes fifty times as long."""
    if size.is_Symbol:
        return sizes[size.name]
    if size.is_Rational:
        return size.p if size.q == 1 else size.p / size.q
    if size.is_Mul:
        return prod(_value(part, sizes) for part in size.args)
    if size.is_Add:
        return sum(_value(part, sizes) for part in size.args)
    if size.is_Pow:
        base, power = (_value(part, sizes) for part in size.args)
        return base**power
    return float(size.subs({SYMBOLS[name]: value for name, value in sizes.items()}))
