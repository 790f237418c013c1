"""What is found of a candidate beside the search that asks for it: bounds, and what fits."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from ..bounds.lp import LpBound
from .candidate_costs import CandidateCosts
from .candidates import Candidate
from .fitting import Found, found_to_fit
from .lp_bound import tighter


@dataclass(frozen=True)
class Asked:
    """A candidate, and what is not worth to be told more of: a step of `enough_us`. None: what fits
    is asked for, not a bound."""

    candidate: Candidate
    enough_us: float | None

    @property
    def key(self) -> tuple[Candidate, bool]:
        """Return the candidate, and whether what fits is asked for."""
        return self.candidate, self.enough_us is None


@dataclass(frozen=True)
class Made:
    """Result of a process on a candidate.

    bound_us: not tightened beyond what is enough. placed: what fits, where that was asked for.
    relaxed: by their keys, the LP bounds that were found on the way.
    """

    asked: Asked
    bound_us: float = 0.0
    placed: Found | None = None
    relaxed: dict[Hashable, LpBound] = field(default_factory=dict)

    def serves(self, asked: Asked) -> bool:
        """Return whether a search that asks this would have made the same."""
        enough_us = asked.enough_us
        return enough_us in (None, self.asked.enough_us) or self.bound_us < enough_us


def make(costs: CandidateCosts, limit: float, asked: Asked) -> Made:
    """Bound a candidate, or cut it."""
    c, known = asked.candidate, set(costs.lp_bounds)
    if asked.enough_us is None:
        made = Made(asked, placed=found_to_fit(costs, c, limit))
    else:
        made = Made(asked, tighter(costs, c, 0.0, asked.enough_us, limit))
    new = costs.lp_bounds.keys() - known
    return replace(made, relaxed={key: costs.lp_bounds[key] for key in new})
