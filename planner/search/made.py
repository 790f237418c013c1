"""What is found of a candidate beside the search that asks for it: bounds, and what fits."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from enum import IntEnum

from ..bounds.lp import LpBound
from .candidate_bounds import CandidateBounds
from .candidate_costs import CandidateCosts
from .candidates import Candidate
from .fitting import Found, found_to_fit
from .lp_bound import tighter, weighted_us

INF = float("inf")


class Known(IntEnum):
    """What may be known of a candidate, the least first: each asks for more time."""

    UNITS = 0  # a bound by candidate_bounds.py, whatever the memory
    PATHS = 1  # a bound by weighted paths (lp_bound.py)
    WHOLLY = 2  # a bound within memory, and by its linear relaxation
    FITS = 3  # cuts and options

    @property
    def effort(self) -> int:
        """Return what it takes for a large model, nearly in ms."""
        return (1, 3, 40, 100)[self]


@dataclass(frozen=True)
class Asked:
    """A candidate, what is asked of it, and the step from which on that is not worth more time."""

    candidate: Candidate
    what: Known
    enough_us: float = INF

    @property
    def key(self) -> tuple[Candidate, Known]:
        """Return the candidate, and what is asked."""
        return self.candidate, self.what


Work = tuple[Asked, ...]  # for one process


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
        if asked.what in (Known.PATHS, Known.FITS):
            return True
        enough_us = asked.enough_us, self.asked.enough_us
        return enough_us[0] == enough_us[1] or self.bound_us < min(enough_us)


def make(costs: CandidateCosts, limit: float, asked: Asked) -> Made:
    """Bound a candidate, or cut it."""
    known = set(costs.lp_bounds)
    made = _make(costs, limit, asked)
    new = costs.lp_bounds.keys() - known
    return replace(made, relaxed={key: costs.lp_bounds[key] for key in new})


def _make(costs: CandidateCosts, limit: float, asked: Asked) -> Made:
    c, enough_us = asked.candidate, asked.enough_us
    if asked.what == Known.FITS:
        return Made(asked, placed=found_to_fit(costs, c, limit))
    if asked.what == Known.UNITS:
        return bounded_by_units(costs, asked)
    if asked.what == Known.PATHS:
        return Made(asked, weighted_us(costs, c, limit))
    return Made(asked, tighter(costs, c, 0.0, enough_us, limit))


def bounded_by_units(costs: CandidateCosts, asked: Asked) -> Made:
    """Return the bound of a candidate whatever its memory."""
    found = CandidateBounds(costs).bound_us(asked.candidate, None, asked.enough_us)
    return Made(asked, found)
