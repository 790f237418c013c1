"""Conditions on the numbers of rows and tokens: the sizes that break one, if any do."""

from collections.abc import Callable, Iterable
from functools import reduce
from itertools import product
from typing import Any

import sympy
import torch
from torch import Tensor

# Sizes at which each condition is tried; lengths also from the least one on, _EACH of them.
_ROWS = (1, 2, 3, 5, 8, 64)
_LENGTHS = (127, 128, 1000, 4096, 65537)
_EACH = 70
# Up to which every size is tried, and fewer lengths where the number of rows counts, too.
_ALL_LENGTHS, _ALL_ROWS = 2**17, 2**12
_FEW = 8
# Rows for which the lengths at which two sides are equal are solved for, and the other way round.
_SOLVED = range(1, 6)


def breaking(
    condition: sympy.Basic,
    rows: sympy.Symbol,
    length: sympy.Symbol,
    lengths: tuple[int, int | None],
) -> tuple[int, int] | None:
    """Return a number of rows and of tokens a row for which a condition does not hold, or None.

    lengths: the least and most tokens of a row. Tried are small and some large sizes, those that
    the condition names, products and quotients of these, and those at which its two sides are
    equal, each with the sizes beside it; then every length up to 131,072 and every number of rows
    up to 4,096, unless the condition holds a function that is unknown here.
    """
    least, _ = lengths
    named = _named(condition)
    tried_rows = {*_ROWS, *named, *_roots(condition, rows, length, range(least, least + 5))}
    tried_lengths = _tried_lengths(condition, rows, length, lengths)
    if rows not in condition.free_symbols:
        tried_rows = {1}
    if length not in condition.free_symbols:
        tried_lengths = [least]
    for b, s in product(sorted(tried_rows), tried_lengths):
        if not condition.subs({rows: b, length: s}):
            return b, s
    end = _ALL_LENGTHS if rows not in condition.free_symbols else _ALL_LENGTHS // _FEW
    every_length = torch.arange(least, min(end, lengths[1] or end) + 1)
    every_row = torch.arange(1, _ALL_ROWS + 1)
    for some_rows, some_lengths in (
        (torch.tensor(sorted(tried_rows)), every_length),
        (every_row, every_length[:_FEW]),
    ):
        known = {rows: some_rows[:, None], length: some_lengths[None, :]}
        for b, s in _where_false(condition, known):
            found = int(some_rows[b]), int(some_lengths[s])
            if not condition.subs(dict(zip((rows, length), found, strict=True))):
                return found
    return None


def _where_false(
    condition: sympy.Basic, known: dict[sympy.Basic, Tensor]
) -> Iterable[tuple[int, int]]:
    """Return the indices of rows and lengths at which a condition is false, one per number of rows;
    nothing where it cannot be calculated."""
    try:
        holds = _calculated(condition, known)
    except KeyError:
        return ()
    shape = torch.broadcast_shapes(*(sizes.shape for sizes in known.values()))
    false = ~holds.bool().expand(shape)
    return [(b, int(row.int().argmax())) for b, row in enumerate(false) if row.any()]


def _calculated(expression: Any, known: dict[sympy.Basic, Tensor]) -> Tensor:
    """What an expression is for many sizes. Raises KeyError for a function that is unknown."""
    if expression in known:
        return known[expression]
    if not expression.args:
        return _number(expression)
    inputs = [_calculated(argument, known) for argument in expression.args]
    return _FUNCTIONS[type(expression).__name__](*inputs)


def _number(expression: Any) -> Tensor:
    if expression.is_Boolean:
        return torch.tensor(bool(expression))
    if not expression.is_number:
        raise KeyError(expression)
    if expression.is_Integer:
        return torch.tensor(int(expression))
    return torch.tensor(float(expression), dtype=torch.float64)


def _power(base: Tensor, exponent: Tensor) -> Tensor:
    whole = not exponent.is_floating_point() and bool((exponent >= 0).all())
    return base**exponent if whole else base.double() ** exponent


def _of_all(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda *given: reduce(function, given)


def _divided(x: Tensor, by: Tensor) -> Tensor:
    return x.double() / by


# By the class names of sympy, and of torch.utils._sympy.functions.
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "Add": _of_all(torch.add),
    "Mul": _of_all(torch.mul),
    "Pow": _power,
    "PowByNatural": _power,
    "FloatPow": _power,
    "Max": _of_all(torch.maximum),
    "Min": _of_all(torch.minimum),
    "And": _of_all(torch.logical_and),
    "Or": _of_all(torch.logical_or),
    "Not": torch.logical_not,
    "Equality": torch.eq,
    "Unequality": torch.ne,
    "StrictLessThan": torch.lt,
    "LessThan": torch.le,
    "StrictGreaterThan": torch.gt,
    "GreaterThan": torch.ge,
    "Abs": torch.abs,
    "floor": torch.floor,
    "ceiling": torch.ceil,
    "FloorDiv": torch.floor_divide,
    "CleanDiv": torch.floor_divide,
    "CeilDiv": lambda x, by: -torch.floor_divide(-x, by),
    "Mod": torch.remainder,
    "PythonMod": torch.remainder,
    "ModularIndexing": lambda x, by, size: torch.remainder(torch.floor_divide(x, by), size),
    "IntTrueDiv": _divided,
    "FloatTrueDiv": _divided,
    "ToFloat": lambda x: x.double(),
    "FloorToInt": torch.floor,
    "CeilToInt": torch.ceil,
    "TruncToInt": torch.trunc,
    "TruncToFloat": torch.trunc,
    "RoundToInt": torch.round,
    "BitwiseFn_bitwise_and": torch.bitwise_and,
    "BitwiseFn_bitwise_or": torch.bitwise_or,
    "BitwiseFn_bitwise_xor": torch.bitwise_xor,
    "Identity": lambda x: x,
    "Where": torch.where,
    "OpaqueUnaryFn_sqrt": lambda x: x.double().sqrt(),
    "OpaqueUnaryFn_log": lambda x: x.double().log(),
    "OpaqueUnaryFn_log2": lambda x: x.double().log2(),
    "OpaqueUnaryFn_exp": lambda x: x.double().exp(),
}


def holds_below(
    condition: sympy.Basic,
    rows: sympy.Symbol,
    length: sympy.Symbol,
    lengths: tuple[int, int | None],
) -> int | None:
    """Return the length from which on a condition never holds, where it does for each below; None
    where there is no such length, or the number of rows counts, too.

    So it is where a table, or one block of a sequence, is long enough.
    """
    if rows in condition.free_symbols:
        return None
    tried = _tried_lengths(condition, rows, length, lengths)
    holds = [bool(condition.subs(length, n)) for n in tried]
    count = holds.count(True)
    falls = 0 < count < len(tried) and all(holds[:count]) and tried[count] == tried[count - 1] + 1
    return tried[count] if falls else None


def holds_from(
    condition: sympy.Basic,
    rows: sympy.Symbol,
    length: sympy.Symbol,
    lengths: tuple[int, int | None],
    latest: int,
) -> int | None:
    """Return the length from which on a condition holds, where that is `latest` or less; None where
    there is no such length.

    So it is where short rows make one block, for torch takes a size of 1 apart.
    """
    least, most = lengths
    while least <= latest and (broken := breaking(condition, rows, length, (least, most))):
        least = broken[1] + 1
    return least if least <= latest else None


def _tried_lengths(
    condition: sympy.Basic,
    rows: sympy.Symbol,
    length: sympy.Symbol,
    lengths: tuple[int, int | None],
) -> list[int]:
    least, most = lengths
    tried = {*range(least, least + _EACH), *_LENGTHS, *_named(condition)}
    tried |= _roots(condition, length, rows, _SOLVED)
    return sorted(n for n in tried if n >= least and (most is None or n <= most))


def _named(condition: sympy.Basic) -> set[int]:
    numbers = {abs(int(n)) for n in condition.atoms(sympy.Integer)} - {0}
    quotients = {n // m for n in numbers for m in numbers if n % m == 0}
    return _with_neighbours({*numbers, *quotients, *(n * m for n in numbers for m in numbers)})


def _roots(
    condition: sympy.Basic, symbol: sympy.Symbol, other: sympy.Symbol, at: Iterable[int]
) -> set[int]:
    """Return the whole sizes at which the two sides of a relation are equal, for others given."""
    found: set[int] = set()
    for relation in condition.atoms(sympy.core.relational.Relational):
        for n in at:
            difference = (relation.lhs - relation.rhs).subs(other, n)
            if difference.has(symbol) and difference.is_polynomial(symbol):
                roots = sympy.Poly(difference, symbol).ground_roots()
                found |= {int(root) for root in roots if root.is_Integer}
    return _with_neighbours(found)


def _with_neighbours(sizes: set[int]) -> set[int]:
    return {n + k for n in sizes for k in (-1, 0, 1) if n + k > 0}
