"""Candidates that wait to be considered, in order of their bounds."""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from .candidate_bounds import CandidateBounds
from .candidate_costs import CandidateCosts
from .candidates import Candidate
from .lp_bound import weighted_us
from .made import Asked, Made

INF = float("inf")


class Bounded(IntEnum):
    """By what a candidate that waits is bounded, the loosest first: each asks for more time."""

    UNITS = 0  # candidate_bounds.py, whatever the memory
    PATHS = 1  # weighted paths (lp_bound.py)
    WHOLLY = 2  # within memory, and by its linear relaxation


@dataclass
class Waiting:
    """A queue. ranked: candidates by their floors; each has its bound made when its floor is the
    least of what waits, and a closer one when that bound is. known: the best bound of each, kept up
    to date. closeness: by what each is bounded. limit: bytes of a rank."""

    costs: CandidateCosts
    limit: float
    ranked: list[tuple[float, Candidate]]
    known: dict[Candidate, float]
    bounded: list[tuple[float, Candidate]] = field(default_factory=list)
    begun: int = 0  # of ranked
    early: dict[Candidate, Made] = field(default_factory=dict)
    closeness: dict[Candidate, Bounded] = field(default_factory=dict)
    weighted: dict[Candidate, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ranked) - self.begun + len(self.bounded)

    @property
    def least_us(self) -> float:
        """Return a bound on all that waits; inf where nothing does."""
        return min(self._least_floor, self.bounded[0][0] if self.bounded else INF)

    @property
    def _least_floor(self) -> float:
        return self.ranked[self.begun][0] if self.begun < len(self.ranked) else INF

    def bound_next(self, enough_us: float) -> bool:
        """Bound the candidate of the least floor, where that is the least of all; return whether it
        was. enough_us: from which on a bound is coarse."""
        if self._least_floor > self.least_us or self.begun == len(self.ranked):
            return False
        floor, candidate = self.ranked[self.begun]
        self.begun += 1
        asked = Asked(candidate, enough_us)
        made = self.early.pop(candidate, None)
        if made is None or not made.serves(asked):
            made = self._made(asked)
        self.put(max(floor, made.bound_us), candidate, Bounded.UNITS)
        return True

    def put(self, bound: float, candidate: Candidate, by: Bounded) -> None:
        """Let a candidate wait under a bound. by: what that is of."""
        self.known[candidate], self.closeness[candidate] = bound, by
        insort(self.bounded, (bound, candidate))

    def pop(self) -> tuple[float, Candidate, Bounded]:
        """Return the candidate of the least bound, which waits no longer, and what that is of."""
        bound, candidate = self.bounded.pop(0)
        return bound, candidate, self.closeness[candidate]

    def coming(self, enough_us: float) -> Iterator[Asked]:
        """Yield what may be asked of candidates soon, nearly in that order."""
        for bound, candidate in self.bounded:
            if bound >= enough_us:
                return
            by, weighted = self.closeness[candidate], self.weighted.get(candidate, INF)
            if by == Bounded.WHOLLY:
                yield Asked(candidate, None)
            elif weighted < enough_us:
                yield Asked(candidate, enough_us)

    def weighted_us(self, candidate: Candidate) -> float:
        """Return the bound of a candidate by weighted paths, in us."""
        if candidate not in self.weighted:
            self.weighted[candidate] = weighted_us(self.costs, candidate, self.limit)
        return self.weighted[candidate]

    def work_early(self, enough_us: float) -> bool:
        """Bound one more candidate before its turn; return whether there was one."""
        for bound, candidate in self.bounded:
            if bound >= enough_us:
                break
            if candidate not in self.weighted:
                self.weighted_us(candidate)
                return True
        return self._bound_early(enough_us)

    def _bound_early(self, enough_us: float) -> bool:
        index = self.begun + len(self.early)
        if index == len(self.ranked) or self.ranked[index][0] >= enough_us:
            return False
        candidate = self.ranked[index][1]
        self.early[candidate] = self._made(Asked(candidate, enough_us))
        return True

    def _made(self, asked: Asked) -> Made:
        """Return the bound of a candidate by its units."""
        bound = CandidateBounds(self.costs).bound_us(asked.candidate, None, asked.enough_us or INF)
        return Made(asked, bound)
