"""Conditions on the numbers of rows and tokens: the sizes that break one, if any do."""

from collections.abc import Iterable
from itertools import product

import sympy

# Sizes at which each condition is tried; lengths also from the least one on, _EACH of them.
_ROWS = (1, 2, 3, 5, 8, 64)
_LENGTHS = (127, 128, 1000, 4096, 65537)
_EACH = 70
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
    equal; each with the sizes beside it.
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
    return None


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
