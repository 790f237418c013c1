"""Cuts of a pipeline by steepest descent on the longest path of its schedule.

Stages that share a rank, or whose backward runs in two, are not fastest when they are equal: what a
rank lacks in one stage another may make up. A step moves a run of neighbouring cuts by one or two
units all together, to the best of all such neighbours, until none is better. They are priced
without collectives, under given options and over the first micro-batches; every further one takes
what the busiest rank takes.

The best neighbour is found without following the schedule of each. A step is at least as long as
any path under its cuts, so the neighbour with the lowest bound is followed, and its longest path
raises the bounds of all. The search ends when the lowest bound is of one that was followed.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..budget import BUDGET
from ..pipeline.closings import LAST, Node
from ..pipeline.critical_path import Path, Waits
from ..pipeline.schedules import SPLIT, stage_ranks
from .candidate_costs import CandidateCosts
from .candidate_units import CandidateUnits
from .candidates import Candidate
from .lp_bound import num_actions

# Multiplications of a product that no BLAS gives to several threads (OpenBLAS: from 2**18 on).
BLOCK = 2**17
Starts = tuple[int, ...]  # the first unit of every stage
Floats = NDArray[np.float64]


def descend(costs: CandidateCosts, c: Candidate, starts: Starts, picks: Sequence[int]) -> Starts:
    """The best cuts found from `starts`; picks: the option of every unit."""
    budget, units = costs.problem.budget, costs.units_of(c)
    followed = min(c.num_microbatches, budget.followed(c.pp, num_actions(c)))
    waits = costs.memo.schedules.waits(c.listing._replace(num_microbatches=followed))
    length = Length(units, c, picks, waits, c.num_microbatches - followed)
    best, us = length.shortest(np.array([starts]))
    for _ in range(budget.descent_steps):
        cuts = neighbours(best, len(units.options), budget.descent_shifts)
        if not len(cuts):
            break
        found, found_us = length.shortest(cuts)
        if not found_us < us * (1 - 1e-9):
            break
        best, us = found, found_us
    return best


def neighbours(
    starts: Starts, count: int, shifts: Sequence[int] = BUDGET.descent_shifts
) -> NDArray[np.int64]:
    """Cuts of `count` units with a run of neighbouring ones moved, [cuts, stages]; no stage is
    empty."""
    first, last = (np.repeat(1 + run, len(shifts)) for run in np.triu_indices(len(starts) - 1))
    shift = np.resize(shifts, len(first))
    ends = np.array((*starts, count))
    fits = ends[first] + shift > ends[first - 1]
    fits &= ends[last + 1] > ends[last] + shift
    first, last, shift = (of[fits, None] for of in (first, last, shift))
    stages = np.arange(len(starts))
    return ends[:-1] + shift * ((first <= stages) & (stages <= last))


class Length:
    """Step times of cuts. more: micro-batches that the waits leave out.

    passed, sends_us: how often each path found so far passes each node, [paths, nodes], and how
    long its transfers take, [paths], in us. by_rank: nodes that a micro-batch passes once, rank by
    rank; first_of_rank: where the nodes of each rank begin among them.
    """

    def __init__(
        self, units: CandidateUnits, c: Candidate, picks: Sequence[int], waits: Waits, more: int
    ) -> None:
        self.count, self.ranks = len(units.options), stage_ranks(c.schedule, c.pp, c.chunks)
        self.waits, self.more = waits, more
        self.send_us = units.sends_us(self.ranks)
        self.sums = {kind: _sums(units, picks, kind) for kind in _kinds(c)}
        self.nodes: list[Node] = [(s, kind) for kind in self.sums for s in range(len(self.ranks))]
        owners = [self.ranks[stage] if kind != LAST else -1 for stage, kind in self.nodes]
        self.by_rank = np.argsort(owners, kind="stable")[owners.count(-1) :]
        self.first_of_rank = np.flatnonzero(np.diff(np.take(owners, self.by_rank), prepend=-1))
        self.passed: Floats = np.zeros((0, len(self.nodes)))
        self.sends_us: Floats = np.zeros(0)

    def shortest(self, cuts: NDArray[np.int64]) -> tuple[Starts, float]:
        """Return the cuts of the shortest step, and that step in us; cuts: [cuts, stages]."""
        node_us = self._node_us(cuts)
        more = self.more * self._busiest(node_us)
        bounds = more.copy()
        for passed, sends_us in zip(product(self.passed, node_us), self.sends_us, strict=True):
            np.maximum(bounds, more + passed + sends_us, out=bounds)
        followed: set[int] = set()
        while (index := int(np.argmin(bounds))) not in followed:
            us = dict(zip(self.nodes, node_us[:, index].tolist(), strict=True))
            longest_us, path = self.waits.longest(us, self.send_us)
            passed, sends_us = self._add(path)
            np.maximum(bounds, more + product(passed[None], node_us)[0] + sends_us, out=bounds)
            bounds[index] = more[index] + longest_us
            followed.add(index)
        return tuple(cuts[index].tolist()), float(bounds[index])

    def _add(self, path: Path) -> tuple[Floats, float]:
        passed = np.array([float(path.nodes.get(node, 0)) for node in self.nodes])
        sends_us = path.sends_us(self.send_us)
        self.passed = np.vstack([self.passed, passed])
        self.sends_us = np.append(self.sends_us, sends_us)
        return passed, sends_us

    def _node_us(self, cuts: NDArray[np.int64]) -> Floats:
        """Return how long an action of each node takes under each of the cuts, [nodes, cuts]."""
        ends = np.vstack([cuts.T, np.full(len(cuts), self.count)])
        return np.concatenate([np.diff(sums[ends], axis=0) for sums in self.sums.values()])

    def _busiest(self, node_us: Floats) -> Floats:
        """Return how long a micro-batch takes the busiest rank under each of the cuts, [cuts]."""
        busy = np.add.reduceat(node_us[self.by_rank], self.first_of_rank, axis=0)
        busiest: Floats = busy.max(axis=0)
        return busiest


def product(rows: Floats, columns: Floats) -> Floats:
    """Return rows [rows, nodes] times columns [nodes, columns], a block of columns at a time.

    Each block is too small for BLAS to start threads. They take processor time from the other
    processes of a search, and make this one no faster.
    """
    each = max(1, int(BLOCK / max(rows.size, 1)))
    blocks = (columns[:, at : at + each] for at in range(0, columns.shape[1], each))
    return np.concatenate([rows @ block for block in blocks], axis=1)


def _kinds(c: Candidate) -> tuple[str, ...]:
    return ("F", "I", "W") if c.schedule in SPLIT else ("F", "B", LAST)


def _sums(units: CandidateUnits, picks: Sequence[int], kind: str) -> Floats:
    """Return, for every unit, how long an action of a kind takes on all units before it."""
    action = "B" if kind == LAST else kind
    us = [options[k].pass_us(action) for options, k in zip(units.options, picks, strict=True)]
    return np.concatenate([[0.0], np.cumsum(us)])
