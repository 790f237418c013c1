"""Results made by several processes at once, and given in order."""

import multiprocessing
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
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

    Each process begins with all that this one has kept, and takes the next numbers when it is free.
    What a process could not make is made here, where the error is raised.
    """
    others = min(processes, count) if can_fork() else 1
    if others < 2:
        yield from (make(number, say) for number in range(count))
        return
    taken: Any = multiprocessing.get_context("fork").Value("i", 0)
    runs = _runs(count, sharing, others)
    with several(partial(_serve, make, runs, taken), others) as forked:
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


def _runs(count: int, sharing: Callable[[int], Hashable], processes: int) -> list[tuple[int, ...]]:
    """Return numbers below `count` in order, those that share work in one run.

    A run is so short that each process gets several, where there are enough numbers.
    """
    most = max(1, count // (_RUNS * processes))
    found = []
    for _, same in groupby(range(count), sharing):
        run = tuple(same)
        found += [run[start : start + most] for start in range(0, len(run), most)]
    return found


def _serve(make: Make[Made], runs: list[tuple[int, ...]], taken: Any, pipe: Connection) -> None:
    while (turn := _next(taken)) < len(runs):
        for number in runs[turn]:
            with suppress(MeshwrightError):
                pipe.send((number, make(number, pipe.send)))


def _next(taken: Any) -> int:
    with taken.get_lock():
        taken.value += 1
        return int(taken.value) - 1
