"""Candidates that wait to be considered, in order of their bounds."""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from .candidate_bounds import CandidateBounds
from .candidate_costs import CandidateCosts
from .candidates import Candidate

INF = float("inf")


@dataclass
class Waiting:
    """A queue. ranked: candidates by their floors; each has its bound made when its floor is the
    least of what waits. known: the best bound of each, kept up to date."""

    costs: CandidateCosts
    ranked: list[tuple[float, Candidate]]
    known: dict[Candidate, float]
    bounded: list[tuple[float, Candidate]] = field(default_factory=list)
    begun: int = 0  # of ranked
    early: dict[Candidate, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ranked) - self.begun + len(self.bounded)

    @property
    def least_us(self) -> float:
        """Return a bound on all that waits; inf where nothing does."""
        return min(self._least_floor, self.bounded[0][0] if self.bounded else INF)

    @property
    def _least_floor(self) -> float:
        return self.ranked[self.begun][0] if self.begun < len(self.ranked) else INF

    def bound_next(self) -> bool:
        """Bound the candidate of the least floor, where that is the least of all; return whether it
        was."""
        if self._least_floor > self.least_us or self.begun == len(self.ranked):
            return False
        floor, candidate = self.ranked[self.begun]
        self.begun += 1
        own = self.early.pop(candidate, None)
        bound = max(floor, self._bound_us(candidate) if own is None else own)
        self.known[candidate] = bound
        insort(self.bounded, (bound, candidate))
        return True

    def pop(self) -> tuple[float, Candidate]:
        """Return the candidate of the least bound, which waits no longer."""
        return self.bounded.pop(0)

    def coming(self, enough_us: float) -> Iterator[Candidate]:
        """Yield candidates that may be considered soon, nearly in that order."""
        early = ((us, c) for c, us in self.early.items())
        for bound, candidate in sorted([*self.bounded, *early]):
            if bound >= enough_us:
                return
            yield candidate

    def bound_early(self, enough_us: float) -> bool:
        """Bound one more candidate before its turn; return whether there was one."""
        index = self.begun + len(self.early)
        if index == len(self.ranked) or self.ranked[index][0] >= enough_us:
            return False
        candidate = self.ranked[index][1]
        self.early[candidate] = self._bound_us(candidate)
        return True

    def _bound_us(self, candidate: Candidate) -> float:
        return CandidateBounds(self.costs).bound_us(candidate)
