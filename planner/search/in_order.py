"""Results made by several processes at once, and given in order."""

import multiprocessing
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from meshwright.ir.errors import MeshwrightError

from .forked import Forked, can_fork, several

Made = TypeVar("Made")
Say = Callable[[str], None]
Make = Callable[[int, Say], Made]
_RUNS = 3  # of numbers, that each process gets where there are enough


def in_order(
    make: Make[Made],
    count: int,
    processes: int,
    say: Say,
    sharing: Callable[[int], Hashable] = lambda number: number,
) -> Iterator[Made]:
    """Yield make(0, say), make(1, say) and so on. processes: that make them at once. sharing:
    equal for numbers whose results share most of their work.

    Each process begins with all that this one has kept. When it is free it takes numbers that share
    work with those it made, else such that share work with none begun, else the next. What a
    process could not make is made here, where the error is raised.
    """
    others = min(processes, count) if can_fork() else 1
    if others < 2:
        yield from (make(number, say) for number in range(count))
        return
    turns = _Turns(_runs(count, sharing, others))
    with several(partial(_serve, make, turns), others) as forked:
        arriving = _Arriving[Made](forked, say)
        for number in range(count):
            yield arriving.of(number) if arriving.has(number) else make(number, say)


class _Arriving(Generic[Made]):
    """What processes send, in any order."""

    def __init__(self, forked: list[Forked], say: Say) -> None:
        self._open, self._say = [one.pipe for one in forked], say
        self._made: dict[int, Made] = {}

    def has(self, number: int) -> bool:
        """Wait for a result; return whether a process made it."""
        while self._open and number not in self._made:
            for pipe in wait(self._open):
                self._take(pipe)  # type: ignore[arg-type]
        return number in self._made

    def of(self, number: int) -> Made:
        return self._made.pop(number)

    def _take(self, pipe: Connection) -> None:
        try:
            sent = pipe.recv()
        except (EOFError, OSError):
            self._open.remove(pipe)
            return
        if isinstance(sent, str):
            self._say(sent)
        else:
            number, made = sent
            self._made[number] = made


@dataclass(frozen=True)
class _Run:
    """Numbers that one process makes. sharing: equal for runs that share most of their work."""

    numbers: tuple[int, ...]
    sharing: Hashable


class _Turns:
    """Runs, and which of them are begun: known to all processes."""

    def __init__(self, runs: list[_Run]) -> None:
        self._runs = runs
        self._begun: Any = multiprocessing.get_context("fork").Array("b", len(runs))

    def next(self, last: _Run | None) -> _Run | None:
        """Begin a run and return it; None where none is left. last: that the process has made."""
        with self._begun.get_lock():
            left = [k for k, begun in enumerate(self._begun) if not begun]
            if not left:
                return None
            others = {
                run.sharing for run, begun in zip(self._runs, self._begun, strict=True) if begun
            }
            turn = min(left, key=lambda k: (*_distance(self._runs[k].sharing, last, others), k))
            self._begun[turn] = 1
        return self._runs[turn]


def _distance(sharing: Hashable, last: _Run | None, begun: set[Hashable]) -> tuple[bool, bool]:
    """Return how far a run is from what a process has made, as an order. begun: by any process."""
    own = last is not None and sharing == last.sharing
    return not own, sharing in begun


def _runs(count: int, sharing: Callable[[int], Hashable], processes: int) -> list[_Run]:
    """Return numbers below `count` in order, those that share work in one run.

    A run is so short that each process gets several, where there are enough numbers.
    """
    most = max(1, count // (_RUNS * processes))
    found = []
    for shared, same in groupby(range(count), sharing):
        run = tuple(same)
        found += [_Run(run[start : start + most], shared) for start in range(0, len(run), most)]
    return found


def _serve(make: Make[Made], turns: _Turns, pipe: Connection) -> None:
    run = None
    while run := turns.next(run):
        for number in run.numbers:
            with suppress(MeshwrightError):
                pipe.send((number, make(number, pipe.send)))
