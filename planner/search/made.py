"""What is found of a candidate beside the search that asks for it: bounds, and what fits."""

from dataclasses import dataclass

from .candidate_costs import CandidateCosts
from .candidates import Candidate
from .fitting import Found, found_to_fit
from .lp_bound import tighter


@dataclass(frozen=True)
class Asked:
    """A candidate, and what is not worth to be told more of: a step of `enough_us`."""

    candidate: Candidate
    enough_us: float


@dataclass(frozen=True)
class Made:
    """Result of a process on a candidate.

    tighter_us: its bound within memory, by its linear relaxation. placed: what fits, where that
    bound is not enough.
    """

    enough_us: float
    tighter_us: float
    placed: Found | None = None

    def serves(self, enough_us: float) -> bool:
        """Return whether a search that asks at this step would have made the same."""
        return self.enough_us == enough_us or self.tighter_us < enough_us


def make(costs: CandidateCosts, limit: float, asked: Asked) -> Made:
    """Bound a candidate, and cut it where that is not enough."""
    c, enough_us = asked.candidate, asked.enough_us
    better = tighter(costs, c, 0.0, enough_us, limit)
    placed = found_to_fit(costs, c, limit) if better < enough_us else None
    return Made(enough_us, better, placed)
