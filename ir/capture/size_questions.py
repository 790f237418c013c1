"""Refuse what a forward asks of sizes under export and gets no true answer to.

torch gives a graph sizes as symbols: it takes B as 2 or more, without a trace, and a symbol is no
key or text that a number is.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import sympy
import torch

from ..errors import CaptureError
from .lines import of_user, short_line

_OTHER = 13  # stands for other sizes than the number of rows
_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__")
_READINGS = {
    "__hash__": "as a key",
    "__str__": "as text",
    "__repr__": "as text",
    "__format__": "as text",
}
# Of a method, the size, and what it is given: what is said against it, "" for nothing.
_Against = Callable[..., str]


class Seen:
    """Holder of what a forward shows, so that under export it assigns no attribute of its module.

    rows, length: of the tokens that it is called on. unread: places of the trainable numbers that
    it returns beside its logits. kept: of those that it sets as attributes.
    """

    rows: Any = None
    length: Any = None
    unread: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


@contextmanager
def no_question_of_one_row(name: str, seen: Seen) -> Iterator[None]:
    """Refuse to compare sizes where one row is unlike several."""

    def against(method: str, size: torch.SymInt, *others: Any) -> str:
        if seen.rows is None or not _apart(method, seen.rows, size, *others):
            return ""
        return (
            "asks for the number of rows, and one row is unlike several there; a graph has one way "
            "for every number of rows, so leave it out"
        )

    with _watched(name, _COMPARISONS, against):
        yield


@contextmanager
def no_sizes_as_keys(name: str) -> Iterator[None]:
    """Refuse to look a size up, and to write it down."""

    def against(method: str, size: torch.SymInt, *given: Any) -> str:
        if not size.node.expr.free_symbols:
            return ""
        return (
            f"takes a size {_READINGS[method]}, of a dictionary or a cache for instance; a graph "
            "has one way for all sizes, so calculate with it, or make what is cached each time"
        )

    with _watched(name, _READINGS, against):
        yield


@contextmanager
def _watched(name: str, methods: Iterable[str], against: _Against) -> Iterator[None]:
    """Ask `against` of each call of some methods of sizes that code of the user's makes."""
    kept = {method: getattr(torch.SymInt, method) for method in methods}

    def watched(method: str) -> Callable[..., Any]:
        def call(self: torch.SymInt, *given: Any) -> Any:
            caller = sys._getframe(1)
            path = caller.f_code.co_filename
            if of_user(path) and (said := against(method, self, *given)):
                line = short_line(path, caller.f_lineno)
                raise CaptureError(f"model {name}: {line} {said}")
            return kept[method](self, *given)

        return call

    for method in kept:
        setattr(torch.SymInt, method, watched(method))
    try:
        yield
    finally:
        for method, plain in kept.items():
            setattr(torch.SymInt, method, plain)


def _apart(method: str, rows: torch.SymInt, *compared: Any) -> bool:
    """Whether a comparison of sizes has another answer for one row than for two and three."""
    given = [sympy.sympify(getattr(getattr(x, "node", x), "expr", x)) for x in compared]
    symbol = rows.node.expr
    if not any(isinstance(x, sympy.Expr) and x.has(symbol) for x in given):
        return False
    one, two, three = (_answer(method, given, symbol, count) for count in (1, 2, 3))
    return two == three != one


def _answer(method: str, given: list[sympy.Expr], rows: sympy.Symbol, count: int) -> bool:
    """What a method of numbers gives for expressions at a number of rows, and some other sizes."""
    known = {symbol: _OTHER for x in given for symbol in x.free_symbols} | {rows: count}
    first, *others = (float(x.subs(known)) for x in given)
    return bool(first) if method == "__bool__" else bool(getattr(first, method)(*others))
