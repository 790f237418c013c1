"""Candidates that wait to be considered, in order of their bounds."""

from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge

from .candidate_costs import CandidateCosts
from .candidates import Candidate
from .made import Asked, Known, Made, Work, bounded_by_units

INF = float("inf")
BATCH = 8  # candidates whose first bounds are asked for at once
MOST = 64  # candidates that are looked at for closer bounds before their turn


@dataclass
class Waiting:
    """A queue. ranked: candidates by their floors; each has its bound made when its floor is the
    least of what waits, and a closer one when that bound is. known: the best bound of each, kept up
    to date. made: by what was asked, all that was made before its turn. closeness: by what each is
    bounded. reached: the first of ranked that nobody bounds before its turn. coarse_us: from which
    on first bounds may be coarse; it stays, so that those made before their turn are all of use."""

    costs: CandidateCosts
    ranked: list[tuple[float, Candidate]]
    known: dict[Candidate, float]
    made: dict[tuple, Made] = field(default_factory=dict)
    coarse_us: float = INF
    bounded: list[tuple[float, Candidate]] = field(default_factory=list)
    begun: int = 0  # of ranked
    reached: int = 0
    closeness: dict[Candidate, Known] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ranked) - self.begun + len(self.bounded)

    @property
    def least_us(self) -> float:
        """Return a bound on all that waits; inf where nothing does."""
        return min(self._least_floor, self.bounded[0][0] if self.bounded else INF)

    @property
    def _least_floor(self) -> float:
        return self.ranked[self.begun][0] if self.begun < len(self.ranked) else INF

    def bound_next(self, ask: Callable[[Asked], Made | None]) -> bool:
        """Bound the candidate of the least floor, where that is the least of all; return whether it
        was. ask: for what other processes made."""
        if self._least_floor > self.least_us or self.begun == len(self.ranked):
            return False
        floor, candidate = self.ranked[self.begun]
        self.begun += 1
        asked = Asked(candidate, Known.UNITS, self.coarse_us)
        made = ask(asked) or bounded_by_units(self.costs, asked)
        self.put(max(floor, made.bound_us), candidate, Known.UNITS)
        return True

    def put(self, bound: float, candidate: Candidate, by: Known) -> None:
        """Let a candidate wait under a bound. by: what that is of."""
        self.known[candidate], self.closeness[candidate] = bound, by
        insort(self.bounded, (bound, candidate))

    def pop(self) -> tuple[float, Candidate, Known]:
        """Return the candidate of the least bound, which waits no longer, and what that is of."""
        bound, candidate = self.bounded.pop(0)
        return bound, candidate, self.closeness[candidate]

    def coming(self, enough_us: float) -> Iterator[Work]:
        """Yield what may be asked soon, in the order of bounds; what takes little time together."""
        closer = sorted(self._closer(enough_us), key=_bound)
        for work in _together(merge(closer, self._unbounded(enough_us), key=_bound)):
            self.reached += sum(asked.what == Known.UNITS for asked in work)
            yield work

    def _closer(self, enough_us: float) -> Iterator[tuple[float, Asked]]:
        """Yield what is to be asked next of the first that are bounded, and their bounds."""
        for bound, candidate in self.bounded[:MOST]:
            what = Known(self.closeness[candidate] + 1)
            while what < Known.FITS and (made := self.made.get((candidate, what))):
                bound, what = max(bound, made.bound_us), Known(what + 1)
            if bound < enough_us:
                yield bound, Asked(candidate, what, enough_us)

    def _unbounded(self, enough_us: float) -> Iterator[tuple[float, Asked]]:
        """Yield what is to be asked of those that nobody bounds, and their floors."""
        self.reached = max(self.reached, self.begun)
        for index in range(self.reached, len(self.ranked)):
            floor, candidate = self.ranked[index]
            if floor >= enough_us:
                return
            yield floor, Asked(candidate, Known.UNITS, self.coarse_us)


def _bound(one: tuple[float, Asked]) -> float:
    return one[0]


def _together(each: Iterable[tuple[float, Asked]]) -> Iterator[Work]:
    """Yield one after another, first bounds several at once."""
    small: list[Asked] = []
    for _, asked in each:
        long = asked.what > Known.PATHS
        if small and (long or len(small) == BATCH):
            yield tuple(small)
            small = []
        if long:
            yield (asked,)
        else:
            small.append(asked)
    if small:
        yield tuple(small)
