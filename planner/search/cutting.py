"""Cuts and options to try for a candidate within memory.

1F1B and GPipe: cuts whose slowest stage is the fastest there is, when every stage may free the
bytes that are too many where that costs least (remat/options.py), then the options of each stage
(remat/selection.py). Memory that the cuts do not foresee is met by cutting again for a little less
of it, and last by stages that each take, in order, all units that some choice fits; this finds cuts
wherever there are some, choices being exact.

Other schedules hold several stages a rank or two kinds of memory. They are cut into equal stages,
and into the stages of the LP bound (lp_bound.py) rounded to whole units; then the units of a rank
give up bytes where they cost least, and where that finds nothing, all units at one price.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from itertools import accumulate
from typing import Any

from ..budget import SearchBudget
from ..pipeline.partition import MemoryCost, balanced
from ..pipeline.schedules import PLAIN, SPLIT
from ..remat.options import UnitOptions, picks_by_price
from ..remat.selection import (
    Leanest,
    Picks,
    Sizes,
    Times,
    has_options,
    leanest_sizes,
    select_options,
)
from ..simulate.beside import Beside, beside
from ..simulate.stage_memory import StageMemory
from .candidate_bounds import CandidateBounds, held_of
from .candidate_costs import CandidateCosts
from .candidate_units import CandidateUnits
from .candidates import Candidate
from .lp_bound import tightened
from .shared_ranks import shared_picks

INF = float("inf")

StageOptions = tuple[Sequence[UnitOptions], Times, int, float, bool, SearchBudget]
Placed = tuple[tuple[int, ...], Picks]  # first unit of every stage, option of every unit


def cutters_of(costs: CandidateCosts, c: Candidate, limit_bytes: float) -> list["Cutter"]:
    """Return the cutters to try: one, and where units may offload a second that offloads nothing.

    The choice of options counts no copies that compute waits for, so the second may be faster.
    """
    offloads = (False, True) if costs.problem.offloads else (False,)
    return [Cutter(costs, c, limit_bytes, stays) for stays in offloads]


class Cutter:
    """Cuts and options to try for one candidate, the best first."""

    def __init__(
        self, costs: CandidateCosts, c: Candidate, limit_bytes: float, stays: bool = False
    ) -> None:
        """stays: nothing is offloaded."""
        self.costs, self.c, self.limit, self.stays = costs, c, limit_bytes, stays
        self.units: CandidateUnits = costs.units_of(c)
        self.context = costs.problem.context_bytes(c)
        self.pinned = costs.problem.pins.cuts

    def ways(self) -> list[Iterator[Placed]]:
        """Cuts and options by several rules, none always the best."""
        return [self._chosen() if self.c.schedule in PLAIN else self._equal(), self._rounded()]

    def last_resort(self) -> Iterator[Placed]:
        if self.c.schedule in PLAIN:
            yield from self._tightest()
        else:
            yield from self._even()
            for picks in picks_by_price(self.units.compute_hulls):
                for starts in self._shared_cuts(picks):
                    yield starts, picks

    def _equal(self) -> Iterator[Placed]:
        """Stages of the same time under the fastest options."""
        yield from self.picked(self._cut(self.units.least_overlapped_us, None))

    def _even(self) -> Iterator[Placed]:
        """Stages that hold the same under the leanest options."""
        c, units = self.c, self.units.options
        held = self.costs.memo.schedules.held(c.listing)
        most = max(kept + waiting for kept, waiting in held)
        kept = [min(unit.work.kept_bytes for unit in options) for options in units]
        stored = [self.costs.storage_bytes(c, options[0].owned_bytes, 0.0) for options in units]
        sizes = [s + most * k for s, k in zip(stored, kept, strict=True)]
        yield from self.picked(self._cut(sizes, None))

    def _rounded(self) -> Iterator[Placed]:
        """Stages that end with the units nearest to the ends of the LP bound's stages."""
        if self.pinned is not None:
            return
        bound = tightened(self.costs, self.c, self.limit)
        if bound.stage_us:
            yield from self.picked(rounded(self.units.least_compute_us, bound.stage_us))

    def picked(self, starts: tuple[int, ...] | None) -> Iterator[Placed]:
        """Cuts with the options that fit them, if any do."""
        if starts is None:
            return
        if self.c.schedule in PLAIN:
            picks = self._picks(starts, self.limit)
        else:
            picks = shared_picks(self.costs, self.c, starts, self.limit, self.stays)
        if picks is not None:
            yield starts, picks

    def _chosen(self) -> Iterator[Placed]:
        hulls, times = self.units.overlapped_hulls, self.units.least_overlapped_us
        seen = set()
        for share in self.costs.problem.budget.memory_shares:
            limit = share * self.limit
            memory = CandidateBounds(self.costs).memory_cost(self.c, self.units, hulls, limit)
            starts = self._cut(times, memory)
            picks = self._picks(starts, limit) if starts else None
            if starts and picks and (starts, picks) not in seen:
                seen.add((starts, picks))
                yield starts, picks

    def _tightest(self) -> Iterator[Placed]:
        starts = self._cut(self.units.least_overlapped_us, self._exact_memory_cost())
        picks = self._picks(starts, self.limit) if starts else None
        if starts and picks:
            yield starts, picks

    def _cut(self, times: Sequence[float], memory: MemoryCost | None) -> tuple[int, ...] | None:
        if self.pinned is not None:
            return (0, *(int(n) for n in self.pinned.split(",")))
        if self.c.num_stages == 1:  # whose options say whether they fit
            return (0,)
        found = balanced(times, self.c.num_stages, memory)
        return None if found is None else tuple(found)

    def _picks(self, starts: tuple[int, ...], limit: float) -> Picks | None:
        """The options of all stages; None where one of them does not fit."""
        picks: Picks = ()
        stops = (*starts[1:], len(self.units.options))
        for stage, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            found = self._stage_picks(start, stop, stage, limit)
            if found is None:
                return None
            picks += found
        return picks

    def _stage_picks(self, start: int, stop: int, stage: int, limit: float) -> Picks | None:
        return select_options(*self._stage(start, stop, stage, limit))

    def _stage(self, start: int, stop: int, stage: int, limit: float) -> StageOptions:
        units = self.units.options[start:stop]
        times = [[f + b for f, b in us] for us in self.units.overlapped[start:stop]]
        stored = sum(options[0].owned_bytes for options in units)
        moving = beside(options[0].bucket_bytes for options in units)
        held, budget = held_of(self.c, stage), self.costs.problem.budget
        return units, times, held, self.free_bytes(limit, stored, moving), self.stays, budget

    def free_bytes(self, limit: float, stored: float, moving: float) -> float:
        """Return what a rank that stores buckets has left for activations. moving: `beside` of
        them."""
        return limit - self.context - self.costs.storage_bytes(self.c, stored, moving)

    @cached_property
    def leanest(self) -> list[Sizes]:
        """Return `leanest_sizes` of every unit, nothing offloaded."""
        known: dict[int, Sizes] = {}
        for options in self.units.options:
            if id(options) not in known:
                staying = [u.work.sizes for u in options if not u.work.away_bytes]
                known[id(options)] = leanest_sizes(staying)
        return [known[id(options)] for options in self.units.options]

    def _exact_memory_cost(self) -> MemoryCost:
        """Nothing where some options fit, else inf."""
        offloads = self.costs.problem.offloads and not self.stays
        has_options = cache(self._has_options)

        def of_stage(stage: int) -> Callable[[int], float]:
            starts: list[int] = []
            growing = _Growing(self, stage)

            def extra(index: int) -> float:
                starts.append(index)
                found = None if offloads else growing.fits(index)
                if found is None:
                    found = has_options(starts[0], index + 1, stage, self.limit)
                return 0.0 if found else INF

            return extra

        return of_stage

    def _has_options(self, *where: Any) -> bool:
        return has_options(*self._stage(*where))

    def _shared_cuts(self, picks: Picks) -> Iterator[tuple[int, ...]]:
        """Cuts for stages that share a rank: without a limit, then for equal shares of its memory.

        The shares are a guess, as the stages of a rank do not peak at once.
        """
        times = [sum(us[k]) for us, k in zip(self.units.compute, picks, strict=True)]
        for memory in (lambda: None, lambda: self._share(picks)):
            starts = self._cut(times, memory())
            if starts:
                yield starts
            if self.pinned is not None:
                return

    def _share(self, picks: Picks) -> MemoryCost:
        """Nothing where units fit a stage within its share of a rank, else inf."""
        c = self.c
        share = (self.limit - self.context) / c.chunks
        held = self.costs.memo.schedules.held(c.listing)

        def of_stage(stage: int) -> Callable[[int], float]:
            memory = StageMemory(c.schedule in SPLIT)
            counts = held[stage]

            def extra(index: int) -> float:
                memory.add(self.units.options[index][picks[index]])
                stored = memory.bucket_bytes, memory.beside_units.mean
                size = self.costs.storage_bytes(c, *stored) + memory.peak(*counts).total_bytes
                return 0.0 if size <= share else INF

            return extra

        return of_stage


class _Growing:
    """A stage to which units are added one by one."""

    def __init__(self, cutter: Cutter, stage: int) -> None:
        self.cutter, self.held = cutter, held_of(cutter.c, stage)
        self.holds, self.stored, self.moving = Leanest(), 0.0, Beside()

    def fits(self, index: int) -> bool | None:
        """Add a unit, and return whether some options fit; None where the leanest do not tell."""
        unit, cutter = self.cutter.units.options[index][0], self.cutter
        self.stored += unit.owned_bytes
        self.moving.add(unit.bucket_bytes)
        self.holds.add(cutter.leanest[index])
        free = cutter.free_bytes(cutter.limit, self.stored, self.moving.mean)
        if self.holds.fits(self.held, free):
            return True
        return None if self.holds.may_fit(self.held, free) else False


def rounded(times: Sequence[float], stage_us: Sequence[float]) -> tuple[int, ...]:
    """First units of contiguous stages, each begun where the sum of times is nearest to that of
    the stages before; every stage has a unit."""
    sums = [0.0, *accumulate(times)]
    starts = [0]
    count = len(stage_us)
    for stage, reached in enumerate(accumulate(stage_us[:-1]), start=1):
        allowed = range(starts[-1] + 1, len(times) - (count - stage) + 1)
        starts.append(min(allowed, key=lambda index: abs(sums[index] - reached)))
    return tuple(starts)
