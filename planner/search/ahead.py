"""Bounds and fits of the next candidates, made by other processes while the search goes on.

What is made follows from the problem, the candidate and the step that is enough alone, so that the
search finds the same whatever the number of processes and whichever is the fastest: a result is
taken where the search itself would have made the same, else it is left and made anew.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait

from ..pipeline.schedule_table import Listing
from .candidate_costs import CandidateCosts
from .candidates import Candidate
from .forked import Forked, can_fork, fork
from .made import Asked, Made, make

FIRST_S = 1.0  # of a search, before it is worth to start processes
MOST = 4  # processes by default: beyond them a search waits for itself
EACH = 3  # candidates that a process is given in advance


def usual_processes() -> int:
    """Return the processes of a search that is not told how many: one a core that it may use."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    return min(cores, MOST)


Coming = Callable[[], Iterable[Asked]]  # what the search will soon ask, nearly in that order


@dataclass
class _Process:
    forked: Forked
    given: list[Asked] = field(default_factory=list)
    listings: set[Listing] = field(default_factory=set)  # whose schedules it has made

    @property
    def pipe(self) -> Connection:
        return self.forked.pipe


@dataclass
class Ahead:
    """The processes beside a search, started when it has taken a second. count: how many at most,
    the search one of them, later without it. began: when the search did, by the clock of
    `time.perf_counter`. Use as a context, whose end stops them."""

    costs: CandidateCosts
    limit: float
    count: int
    began: float
    made: dict[tuple, Made] = field(default_factory=dict)
    coming: Coming = tuple
    processes: list[_Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.count = self.count - 1 if can_fork() else 0

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.processes:
            one.forked.end()
        self.processes.clear()

    def give(self, coming: Coming) -> None:
        """Give the processes what the search will soon ask, and know it."""
        self.coming = coming
        if not self._started():
            return
        self._receive(0.0)
        for asked in self._left():
            free = [one for one in self.processes if len(one.given) < EACH]
            if not free:
                return
            c = asked.candidate
            self._send(min(free, key=lambda one: _effort(one, c)), asked)

    def _left(self) -> Iterator[Asked]:
        """Yield what is coming that nobody has."""
        for asked in self.coming():
            if self._served(asked) is None and not self._is_given(asked):
                yield asked

    def ask(self, asked: Asked, meanwhile: Callable[[], bool]) -> Made | None:
        """Return what was made of a candidate, once it is ready; None where no process has it, or
        the search would have made another.

        meanwhile: does a part of what else there is to do; returns whether there was any.
        """
        while self._is_given(asked):
            self._receive(0.0 if meanwhile() or self._make_next() else None)
        return self._served(asked)

    def _make_next(self) -> bool:
        """Make what is coming next and no process has; return whether there was any."""
        asked = next(self._left(), None)
        if asked is not None:
            self.made[asked.key] = make(self.costs, self.limit, asked)
        return asked is not None

    def _served(self, asked: Asked) -> Made | None:
        known = self.made.get(asked.key)
        return known if known and known.serves(asked) else None

    def _started(self) -> bool:
        """Start the processes when it is time; return whether there are any."""
        if len(self.processes) < self.count and time.perf_counter() - self.began > FIRST_S:
            try:
                while len(self.processes) < self.count:
                    self.processes.append(self._fork())
            except OSError:  # no memory, or no more processes allowed
                self.count = len(self.processes)
        return bool(self.processes)

    def _fork(self) -> _Process:
        serve = partial(_serve, self.costs, self.limit)
        return _Process(fork(serve, [one.pipe for one in self.processes]))

    def _send(self, to: _Process, asked: Asked) -> None:
        try:
            to.pipe.send(asked)
            to.given.append(asked)
            to.listings.add(asked.candidate.listing)
        except OSError:
            self._lose(to)

    def _is_given(self, asked: Asked) -> bool:
        return any(asked.key == other.key for one in self.processes for other in one.given)

    def _receive(self, seconds: float | None) -> None:
        """Take what is ready; wait for something for so long, None for as long as it takes."""
        for pipe in wait([one.pipe for one in self.processes], seconds):
            sender = next(one for one in self.processes if one.pipe is pipe)
            try:
                made = sender.pipe.recv()
                self.made[sender.given.pop(0).key] = made
                self.costs.lp_bounds.update(made.relaxed)
            except (EOFError, OSError):
                self._lose(sender)

    def _lose(self, dead: _Process) -> None:
        """Go on without a process that ended, such as one that the system took for its memory."""
        self.count -= 1
        self.processes.remove(dead)
        dead.pipe.close()


def _effort(one: _Process, c: Candidate) -> tuple[bool, bool, int]:
    """Return what a process must do for a candidate, as an order: one that has nothing else to do
    comes first, then one that has made its schedule."""
    return bool(one.given), c.listing not in one.listings, len(one.given)


def _serve(costs: CandidateCosts, limit: float, pipe: Connection) -> None:
    """Answer until the search ends."""
    while True:
        pipe.send(make(costs, limit, pipe.recv()))
