"""Bounds and fits of the next candidates, made by other processes while the search goes on.

What is made follows from the problem, the candidate and the step that is enough alone, so that the
search finds the same whatever the number of processes and whichever is the fastest: a result is
taken where the search itself would have made the same, else it is left and made anew.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from ..pipeline.schedule_table import Listing
from .candidate_costs import CandidateCosts
from .candidates import Candidate
from .forked import Forked, can_fork, fork
from .lp_bound import known_bound
from .made import Asked, Known, Made, Work, make

FIRST_S = 1.0  # of a search, before it is worth to start processes
MOST = 4  # processes by default: beyond them a search waits for itself
EACH = 60  # that a process is given in advance, nearly in ms: more would be of an old order
WORKS = 1 << 16  # that a process is given at most


def usual_processes() -> int:
    """Return the processes of a search that is not told how many: one a core that it may use."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    return min(cores, MOST)


Coming = Callable[[], Iterable[Work]]  # what the search will soon ask, nearly in that order


class _Taken:
    """Which works somebody has begun, by their numbers: known to two processes, so that each is
    made by one of them."""

    def __init__(self) -> None:
        self._flags: Any = multiprocessing.get_context("fork").Array("b", WORKS)

    def take(self, number: int) -> bool:
        """Begin a work; return False where it was begun before."""
        with self._flags.get_lock():
            free = not self._flags[number]
            self._flags[number] = 1
        return free


@dataclass(eq=False)
class _Process:
    forked: Forked
    taken: _Taken
    given: dict[int, Work] = field(default_factory=dict)  # by their numbers, in order
    count: int = 0  # of all that were given
    listings: set[Listing] = field(default_factory=set)  # whose schedules it has made

    @property
    def pipe(self) -> Connection:
        return self.forked.pipe

    @property
    def is_free(self) -> bool:
        """Return whether it may be given more."""
        effort = sum(asked.what.effort for work in self.given.values() for asked in work)
        return effort < EACH and self.count < WORKS


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
    given: dict[tuple, tuple[_Process, int]] = field(default_factory=dict)  # by key, to whom
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
        if self._started():
            self._receive(0.0)
            self._fill()

    def _fill(self) -> None:
        left = self._left()
        while free := [one for one in self.processes if one.is_free]:
            if (work := next(left, None)) is None:
                return
            self._send(min(free, key=lambda one: _effort(one, work[0].candidate)), work)

    def _left(self) -> Iterator[Work]:
        """Yield what is coming that nobody has."""
        for work in self.coming():
            if left := tuple(asked for asked in work if not self._has(asked)):
                yield left

    def _has(self, asked: Asked) -> bool:
        return asked.key in self.given or self._served(asked) is not None

    def ask(self, asked: Asked) -> Made | None:
        """Return what was made of a candidate, once it is ready; None where no process has begun
        it, or the search would have made another."""
        while at := self.given.get(asked.key):
            if not self._made_here(*at):
                self._receive(0.0 if self._make_next() else None)
            self._fill()
        return self._served(asked)

    def _made_here(self, given: _Process, number: int) -> bool:
        """Make what a process was given, unless it has begun it; return whether it was made."""
        if not given.taken.take(number):
            return False
        self._make(given.given[number])
        return True

    def _make_next(self) -> bool:
        """Make what is coming next and nobody has begun; return whether there was any."""
        if any(self._made_here(*at) for at in dict.fromkeys(self.given.values())):
            return True
        work = next(self._left(), ())
        self._make(work)
        return bool(work)

    def _make(self, work: Work) -> None:
        for asked in work:
            self.made[asked.key] = make(self.costs, self.limit, asked)
            self.given.pop(asked.key, None)

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
        taken = _Taken()
        serve = partial(_serve, self.costs, self.limit, taken)
        return _Process(fork(serve, [one.pipe for one in self.processes]), taken)

    def _send(self, to: _Process, work: Work) -> None:
        """Give a process a work, with the bounds that it would make again."""
        cut = [asked.candidate for asked in work if asked.what == Known.FITS]
        known = [known_bound(self.costs, c, self.limit) for c in cut]
        try:
            to.pipe.send((to.count, work, known))
        except OSError:
            self._lose(to)
            return
        to.given[to.count] = work
        self.given |= dict.fromkeys((asked.key for asked in work), (to, to.count))
        to.count += 1
        to.listings.add(work[0].candidate.listing)

    def _receive(self, seconds: float | None) -> None:
        """Take what is ready; wait for something for so long, None for as long as it takes."""
        for pipe in wait([one.pipe for one in self.processes], seconds):
            sender = next(one for one in self.processes if one.pipe is pipe)
            try:
                number, found = sender.pipe.recv()
            except (EOFError, OSError):
                self._lose(sender)
                continue
            sender.given.pop(number)
            for made in found:
                del self.given[made.asked.key]
                self.made[made.asked.key] = made
                self.costs.lp_bounds.update(made.relaxed)

    def _lose(self, dead: _Process) -> None:
        """Go on without a process that ended, such as one that the system took for its memory."""
        self.count -= 1
        self.processes.remove(dead)
        self.given = {key: at for key, at in self.given.items() if at[0] is not dead}
        dead.pipe.close()


def _effort(one: _Process, c: Candidate) -> tuple[bool, bool, int]:
    """Return what a process must do for a candidate, as an order: one that has nothing else to do
    comes first, then one that has made its schedule."""
    return bool(one.given), c.listing not in one.listings, len(one.given)


def _serve(costs: CandidateCosts, limit: float, taken: _Taken, pipe: Connection) -> None:
    """Answer until the search ends: with nothing where the search has made it meanwhile."""
    while True:
        number, work, known = pipe.recv()
        for relaxed in known:
            costs.lp_bounds.update(relaxed)
        mine = work if taken.take(number) else ()
        pipe.send((number, [make(costs, limit, asked) for asked in mine]))
