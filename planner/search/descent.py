"""Cuts of a pipeline by steepest descent on the longest path of its schedule.

Stages that share a rank, or whose backward runs in two, are not fastest when they are equal: what a
rank lacks in one stage another may make up. A step moves a run of neighbouring cuts by one or two
units all together, to the best of all such neighbours, until none is better. They are priced side
by side, without collectives, under given options and over the first micro-batches; every further
one takes what the busiest rank takes.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..budget import BUDGET
from ..pipeline.critical_path import LAST, Waits
from ..pipeline.schedules import SPLIT, stage_ranks
from .candidate_costs import CandidateCosts
from .candidate_units import CandidateUnits
from .candidates import Candidate

Starts = tuple[int, ...]  # the first unit of every stage


def descend(costs: CandidateCosts, c: Candidate, starts: Starts, picks: Sequence[int]) -> Starts:
    """The best cuts found from `starts`; picks: the option of every unit."""
    budget, units = costs.problem.budget, costs.units_of(c)
    followed = min(c.num_microbatches, budget.descent_microbatches * c.pp)
    waits = costs.memo.schedules.waits(c.listing._replace(num_microbatches=followed))
    length = _Length(units, c, picks, waits, c.num_microbatches - followed)
    best, us = starts, length.of([starts])[0]
    for _ in range(budget.descent_steps):
        cuts = neighbours(best, len(units.options), budget.descent_shifts)
        if not cuts:
            break
        lengths = length.of(cuts)
        index = int(np.argmin(lengths))
        if not lengths[index] < us * (1 - 1e-9):
            break
        best, us = cuts[index], lengths[index]
    return best


def neighbours(
    starts: Starts, count: int, shifts: Sequence[int] = BUDGET.descent_shifts
) -> list[Starts]:
    """Cuts of `count` units with a run of neighbouring ones moved; no stage is empty."""
    ends = (*starts, count)
    found = []
    for first in range(1, len(starts)):
        for last in range(first, len(starts)):
            for shift in shifts:
                left = ends[first] + shift - ends[first - 1]
                right = ends[last + 1] - ends[last] - shift
                if left > 0 and right > 0:
                    moved = (start + shift for start in starts[first : last + 1])
                    found.append((*starts[:first], *moved, *starts[last + 1 :]))
    return found


class _Length:
    """Step times of many cuts at once. more: micro-batches that the waits leave out."""

    def __init__(
        self, units: CandidateUnits, c: Candidate, picks: Sequence[int], waits: Waits, more: int
    ) -> None:
        self.count, self.ranks = len(units.options), stage_ranks(c.schedule, c.pp, c.chunks)
        self.waits, self.more = waits, more
        self.send_us = units.sends_us(self.ranks)
        self.sums = {kind: _sums(units, picks, kind) for kind in _kinds(c)}

    def of(self, cuts: Sequence[Starts]) -> NDArray[np.float64]:
        """Return the step times of cuts, in us."""
        ends = np.array([(*starts, self.count) for starts in cuts]).T
        stages = {
            (stage, kind): sums[ends[stage + 1]] - sums[ends[stage]]
            for kind, sums in self.sums.items()
            for stage in range(len(self.ranks))
        }
        return self.waits.lengths(stages, self.send_us) + self.more * self._busiest(stages)

    def _busiest(self, stages: dict[tuple[int, str], NDArray]) -> NDArray[np.float64]:
        ranks: dict[int, list[NDArray]] = {}
        for (stage, kind), us in stages.items():
            if kind != LAST:
                ranks.setdefault(self.ranks[stage], []).append(us)
        return np.max([np.sum(actions, axis=0) for actions in ranks.values()], axis=0)


def _kinds(c: Candidate) -> tuple[str, ...]:
    return ("F", "I", "W") if c.schedule in SPLIT else ("F", "B", LAST)


def _sums(units: CandidateUnits, picks: Sequence[int], kind: str) -> NDArray[np.float64]:
    """Return, for every unit, how long an action of a kind takes on all units before it."""
    action = "B" if kind == LAST else kind
    us = [options[k].pass_us(action) for options, k in zip(units.options, picks, strict=True)]
    return np.concatenate([[0.0], np.cumsum(us)])
