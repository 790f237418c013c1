"""Conditions on the numbers of rows and tokens: the sizes that break one, if any do."""

from collections.abc import Callable, Iterable
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
import sympy

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
    up to 4,096, unless numpy cannot calculate the condition.
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
    every_length = np.arange(least, min(end, lengths[1] or end) + 1)
    every_row = np.arange(1, _ALL_ROWS + 1)
    for some_rows, some_lengths in (
        (np.array(sorted(tried_rows)), every_length),
        (every_row, every_length[:_FEW]),
    ):
        known = {rows: some_rows[:, None], length: some_lengths[None, :]}
        for b, s in _where_false(condition, known):
            found = int(some_rows[b]), int(some_lengths[s])
            if not condition.subs(dict(zip((rows, length), found, strict=True))):
                return found
    return None


def _where_false(
    condition: sympy.Basic, known: dict[sympy.Basic, np.ndarray]
) -> Iterable[tuple[int, int]]:
    """Return the indices of rows and lengths at which a condition is false, one per number of rows;
    nothing where it cannot be calculated."""
    try:
        holds = _calculated(condition, known)
    except KeyError:
        return ()
    shape = np.broadcast_shapes(*(sizes.shape for sizes in known.values()))
    false = ~np.broadcast_to(holds, shape).astype(bool)
    return [(b, int(row.argmax())) for b, row in enumerate(false) if row.any()]


def _calculated(expression: Any, known: dict[sympy.Basic, np.ndarray]) -> Any:
    """What an expression is for arrays of sizes. Raises KeyError for a function that is unknown."""
    if expression in known:
        return known[expression]
    if not expression.args:
        return bool(expression) if expression.is_Boolean else _number(expression)
    inputs = [_calculated(argument, known) for argument in expression.args]
    return _FUNCTIONS[type(expression).__name__](*inputs)


def _number(expression: Any) -> int | float:
    if not expression.is_number:
        raise KeyError(expression)
    return int(expression) if expression.is_Integer else float(expression)


def _power(base: Any, exponent: Any) -> Any:
    whole = isinstance(exponent, int) and exponent >= 0
    return base**exponent if whole else np.power(np.asarray(base, dtype=float), exponent)


def _of_all(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda *given: reduce(function, given)


# By the class names of sympy, and of torch.utils._sympy.functions.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": _of_all(np.add),
    "Mul": _of_all(np.multiply),
    "Pow": _power,
    "PowByNatural": _power,
    "FloatPow": _power,
    "Max": _of_all(np.maximum),
    "Min": _of_all(np.minimum),
    "And": _of_all(np.logical_and),
    "Or": _of_all(np.logical_or),
    "Not": np.logical_not,
    "Equality": np.equal,
    "Unequality": np.not_equal,
    "StrictLessThan": np.less,
    "LessThan": np.less_equal,
    "StrictGreaterThan": np.greater,
    "GreaterThan": np.greater_equal,
    "Abs": np.abs,
    "floor": np.floor,
    "ceiling": np.ceil,
    "FloorDiv": np.floor_divide,
    "CleanDiv": np.floor_divide,
    "CeilDiv": lambda x, by: -(-x // by),
    "Mod": np.mod,
    "PythonMod": np.mod,
    "ModularIndexing": lambda x, by, modulus: x // by % modulus,
    "IntTrueDiv": np.true_divide,
    "FloatTrueDiv": np.true_divide,
    "ToFloat": lambda x: np.asarray(x, dtype=float),
    "FloorToInt": np.floor,
    "CeilToInt": np.ceil,
    "TruncToInt": np.trunc,
    "TruncToFloat": np.trunc,
    "RoundToInt": np.round,
    "Identity": lambda x: x,
    "Where": np.where,
    "OpaqueUnaryFn_sqrt": np.sqrt,
    "OpaqueUnaryFn_log": np.log,
    "OpaqueUnaryFn_log2": np.log2,
    "OpaqueUnaryFn_exp": np.exp,
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
