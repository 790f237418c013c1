"""The LP bound of a candidate, the tightest one there is (bounds/lp.py).

It is asked only of candidates that the bounds of candidate_bounds.py leave, as it takes a tenth of
a second and more.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from ..bounds.lp import INF, Kind, LpBound, Pipeline, Times, bound_pipeline
from ..bounds.mixes import mixes_of
from ..bounds.packing import may_pack
from ..bounds.weighted_paths import WeightedPaths, paths_of_equal_stages, weighted_bound
from ..budget import LpEffort
from ..cost.piece_cost import Phase
from ..pipeline.closings import LAST
from ..pipeline.schedules import SPLIT, stage_ranks
from ..remat.options import UnitOptions
from ..simulate.beside import beside
from ..simulate.step_model import Unit
from .candidate_bounds import CandidateBounds
from .candidate_costs import CandidateCosts
from .candidate_units import CandidateUnits
from .candidates import Candidate

# Kinds of units, what the ends of a stage may spare an action by its name, the kind of each unit.
Counted = tuple[tuple[Kind, ...], dict[str, float], list[int]]


def tightened(
    costs: CandidateCosts,
    c: Candidate,
    limit_bytes: float | None,
    enough_us: float = INF,
    effort: LpEffort | None = None,
) -> LpBound:
    """A lower bound on the simulated step of a pipeline, for any cuts and options that fit; not
    tightened beyond `enough_us`, with quick effort unless another one is given."""
    effort = effort or costs.problem.budget.quick
    given = c, limit_bytes, effort
    known, key = costs.lp_bounds, (costs.placed(c.compute), *given)
    whole = known.get((*key, INF))
    if whole is not None and (whole.step_us < enough_us or whole.step_us == INF):
        return whole
    if (*key, enough_us) not in known:
        with costs.memo.clock.layer("bounds"):
            found = _tightened(costs, *given, enough_us)
        # What is below enough, or proves that nothing fits, is the same whatever is enough.
        stopped = enough_us <= found.step_us < INF
        known[*key, enough_us if stopped else INF] = found
        return found
    return known[*key, enough_us]


def known_bound(costs: CandidateCosts, c: Candidate, limit_bytes: float) -> dict[Hashable, LpBound]:
    """Return by its key the LP bound of a candidate that cuts follow, where it is known."""
    key = costs.placed(c.compute), c, limit_bytes, costs.problem.budget.quick, INF
    return {key: costs.lp_bounds[key]} if key in costs.lp_bounds else {}


def tighter(
    costs: CandidateCosts, c: Candidate, bound_us: float, most_us: float, limit: float
) -> float:
    """The best bound known, dearer ones only while they matter. bound_us: of weighted paths, or a
    closer one."""
    if bound_us < most_us:
        bound_us = max(bound_us, CandidateBounds(costs).bound_us(c, limit, most_us))
    if bound_us < most_us:
        bound_us = max(bound_us, tightened(costs, c, limit, most_us).step_us)
    return bound_us


def weighted_us(costs: CandidateCosts, c: Candidate, limit_bytes: float) -> float:
    """Return a bound on the step by the paths that an LP begins with, in us; inf where memory has
    no place for its units, 0 where there is no LP."""
    if not _has_lp(costs, c):
        return 0.0
    with costs.memo.clock.layer("bounds"):
        pipeline = _pipeline(costs, c, limit_bytes)
        most_at_last = _most_at_last(pipeline.passing_bytes)
        if not may_pack(pipeline, costs.memo.schedules.moments(c.listing, most_at_last)):
            return INF
        return weighted_bound(pipeline, _first_paths(costs, c)) + _sync_us(costs, c)


def _most_at_last(passing_bytes: tuple[float, float]) -> bool:
    """Return whether functions of the last stage have more alive than those of the others."""
    last, elsewhere = passing_bytes
    return last >= elsewhere


def _has_lp(costs: CandidateCosts, c: Candidate) -> bool:
    """Return whether there is an LP bound: with very many micro-batches the bubbles of a schedule
    are small."""
    return c.pp > 1 and num_actions(c) <= costs.problem.budget.max_actions


def num_actions(c: Candidate) -> int:
    """Return the forwards and backwards of a schedule."""
    return 2 * c.num_stages * c.num_microbatches


def _sync_us(costs: CandidateCosts, c: Candidate) -> float:
    """Return the time of the all-reduce that ends a step."""
    return costs.units_of(c).table.links.world_us()


def _tightened(
    costs: CandidateCosts,
    c: Candidate,
    limit_bytes: float | None,
    effort: LpEffort,
    enough_us: float,
) -> LpBound:
    if not _has_lp(costs, c):
        return LpBound(0.0)
    sync_us, step = _sync_us(costs, c), costs.problem.budget.lp_step
    first = effort == costs.problem.budget.quick
    paths = (_first_paths(costs, c) if first else tightened(costs, c, limit_bytes)).paths
    pipeline = _pipeline(costs, c, limit_bytes)
    busiest = 0.0 if first else CandidateBounds(costs).busiest_us(c)
    found = bound_pipeline(pipeline, enough_us - sync_us, effort, paths, step, busiest)
    return replace(found, step_us=found.step_us + sync_us) if found.stage_us else found


def _pipeline(costs: CandidateCosts, c: Candidate, limit_bytes: float | None) -> Pipeline:
    """Return `pipeline_of` a candidate, that of the last one made once."""
    known = costs.memo.table("pipelines of LPs", costs.problem.read_by_bounds)
    key = costs.placed(c.compute), c, limit_bytes
    if key not in known:
        known.clear()
        known[key] = pipeline_of(costs, c, limit_bytes)
    return known[key]


def _first_paths(costs: CandidateCosts, c: Candidate) -> WeightedPaths:
    """Return paths that an LP begins with, the same for all candidates of a schedule."""
    budget, schedules = costs.problem.budget, costs.memo.schedules
    short = num_actions(c) <= budget.equal_actions
    effort = budget.equal_stages if short else budget.quick, budget.lp_step
    known = costs.memo.table("paths of equal stages", *effort)
    key = c.listing, costs.units_of(c).most_silent(c.num_stages)
    if key not in known:
        given = schedules.schedule(*key), schedules.waits(*key), c.listing.stage_ranks
        known[key] = paths_of_equal_stages(*given, *effort)
    return known[key]


def pipeline_of(costs: CandidateCosts, c: Candidate, limit_bytes: float | None) -> Pipeline:
    """Return what the LP bound asks of a candidate.

    No gradient goes to a stage that may train nothing: cuts where it does wait for more.
    """
    units = costs.units_of(c)
    ranks = stage_ranks(c.schedule, c.pp, c.chunks)
    kinds, spared, order = _kinds(costs, c, units)
    passing = _passing(units.options[-1:], c), _passing(units.distinct, c)
    schedules = costs.memo.schedules
    return Pipeline(
        kinds=kinds,
        schedule=schedules.schedule(c.listing),
        waits=schedules.waits(c.listing, units.most_silent(c.num_stages)),
        stage_ranks=ranks,
        spared=spared,
        send_us=CandidateBounds(costs).bound_sends_us(c, ranks),
        overlap_price=units.overlap_price,
        limit_bytes=limit_bytes,
        fixed_bytes=_fixed_bytes(costs, c, units, ranks),
        passing_bytes=passing,
        moments=schedules.peaks(c.listing, _most_at_last(passing)),
        mixes=mixes_of(order, c.num_stages),
        reduces_late=c.zero < 2,
    )


def _kinds(costs: CandidateCosts, c: Candidate, units: CandidateUnits) -> Counted:
    """Return the kinds of units, made once for all schedules whose backward runs in as many."""
    known = costs.memo.table("kinds of LPs", costs.problem.read_by_bounds)
    sizes = c.mesh, c.micro_batch, c.num_microbatches, c.zero, c.recompute, c.schedule in SPLIT
    replays, precision = costs.problem.replays(c), costs.precision(c)
    key = costs.placed(c.compute), *sizes, replays, precision
    if key not in known:
        known[key] = _Kinds(costs, c, units).found()
    return known[key]


def _passing(units: Iterable[UnitOptions], c: Candidate) -> float:
    """Return the least bytes that the backward of any of the units has alive."""
    return min(_start(u, c).peak_bytes for options in units for u in options)


def _start(unit: Unit, c: Candidate) -> Phase:
    split = unit.work.split
    return split.input_grad if c.schedule in SPLIT and split else unit.work.backward


def _fixed_bytes(
    costs: CandidateCosts, c: Candidate, units: CandidateUnits, ranks: tuple[int, ...]
) -> tuple[float, ...]:
    """Return by rank bytes of data and context, and of what buckets take on their way at least."""
    sizes = [options[0].bucket_bytes for options in units.options]
    moving = [beside([min(sizes)])] * c.pp
    for rank, size in ((ranks[0], sizes[0]), (ranks[-1], sizes[-1])):
        moving[rank] = max(moving[rank], beside([size]))
    if c.pp == 1:
        moving = [beside(sizes)]
    context = costs.problem.context_bytes(c)
    return tuple(context + costs.storage_bytes(c, 0.0, size) for size in moving)


class _Kinds:
    """Equal units counted together."""

    def __init__(self, costs: CandidateCosts, c: Candidate, units: CandidateUnits) -> None:
        self.c, self.units, self.reduces = c, units, c.zero >= 2
        self.split = c.schedule in SPLIT
        self.per_byte = costs.storage_bytes(c, 1.0, 0.0)
        self.tails = _tails(costs, c, units)
        self.gathers = any(options[0].gather_us for options in units.options)
        alone = not (self.reduces and self.gathers)  # no gathers among the reductions
        reduce = [options[0].reduce_us if alone else 0.0 for options in units.options]
        self.slowed, self.unslowed = _slowed(units, reduce)
        self.overlaps = units.overlapped != units.compute

    def found(self) -> Counted:
        """Kinds, the first and last unit's first; what an action is spared; the kind of each
        unit."""
        last = len(self.units.options) - 1
        keys = [self._key(index) for index in range(last + 1)]
        numbers: dict[tuple, int] = {}
        for index in (0, last, *range(1, last)):
            numbers.setdefault(keys[index], index)
        counts, places = Counter(keys), {key: number for number, key in enumerate(numbers)}
        kinds = tuple(self._kind(index, counts[key]) for key, index in numbers.items())
        return kinds, self._spared(), [places[key] for key in keys]

    def _key(self, index: int) -> tuple:
        ends = {0: "first", len(self.tails) - 1: LAST}.get(index, "")
        times = self.slowed[index], self.tails[index], tuple(self.units.overlapped[index])
        return ends, self.units.kinds[index], *times

    def _kind(self, index: int, count: int) -> Kind:
        c, options = self.c, self.units.options[index]
        unit = options[0]
        passes = c.num_microbatches if self.reduces else 1
        gathers = (1 + unit.work.runs_backward) * c.num_microbatches
        reduces_us = passes * unit.reduce_us + unit.replicas_us
        split = [u.work.split for u in options]
        return Kind(
            count=count,
            alone=self._alone(options),
            beside=self._beside(index),
            traffic_us=reduces_us + gathers * unit.gather_us,
            tail_us=self.tails[index],
            stored_bytes=self.per_byte * unit.owned_bytes,
            kept=tuple(u.work.kept_bytes for u in options),
            handed=tuple(s.handed_bytes if self.split and s else 0.0 for s in split),
            closing_us=unit.reduce_us + unit.replicas_us,
        )

    def _alone(self, options: UnitOptions) -> Times:
        kinds = ("F", "I", "W") if self.split else ("F", "B", LAST)
        return {kind: tuple(self._pass_us(u, kind) for u in options) for kind in kinds}

    def _pass_us(self, unit: Unit, kind: str) -> float:
        """Return the time of an action on a unit, with what compute waits for before reductions."""
        action = "B" if kind == LAST else kind
        ready = self.reduces or kind == LAST
        blocking = unit.blocking_us if ready and kind != "F" and unit.completes_in(action) else 0.0
        return unit.pass_us(action) + blocking

    def _beside(self, index: int) -> Times:
        """Times beside collectives. A split backward has none: I and W share its collectives."""
        forward, backward = zip(*self.units.overlapped[index], strict=True)
        gathers = {"F": forward} if self.overlaps else {}
        if self.split:
            return gathers
        if self.reduces and self.gathers:
            return gathers | {"B": backward, LAST: backward}
        alone = self._alone(self.units.options[index])
        kinds = ("B", LAST) if self.reduces else (LAST,)
        slowed, longer = self.slowed[index], self._lets_drain(index)
        return gathers | {
            k: tuple(us + slowed - more for us, more in zip(alone[k], longer, strict=True))
            for k in kinds
        }

    def _lets_drain(self, index: int) -> list[float]:
        """Return by option how much less the next unit in backward is slowed, at most.

        This one takes longer than under its fastest option, so more reductions end before the next.
        """
        us = [u.pass_us("B") for u in self.units.options[index]]
        price = self.units.overlap_price
        return [price * (1 + price) * (one - min(us)) for one in us]

    def _spared(self) -> dict[str, float]:
        """Return what the ends of a stage may spare an action, as analytic.slack_us says for both
        directions together; of the last backward without gathers, what its first units spare."""
        first = min(options[0].gather_us for options in self.units.options)
        forward, backward = (_most(self.units, way) for way in (0, 1))
        backward = max(0.0, 2 * backward - first) if self.gathers else self.unslowed
        last = backward if self.reduces else self.unslowed
        return {"F": max(0.0, forward - first), "B": backward, LAST: last}


def _slowed(units: CandidateUnits, reduce: Sequence[float]) -> tuple[list[float], float]:
    """Return by how much reductions slow each unit in a last backward, whatever its option, and how
    much less the first two units of a stage are slowed, at most. reduce: by unit, in us.

    The unit before each is taken under its fastest option.

    When a unit begins, the reduction of the one before it has just been issued, and of the one
    before that is left what the time between was too short for. Where compute waits for a copy
    meanwhile, it loses more than the reductions that it then runs without would have slowed it.
    """
    least, price = units.least_backward_us, units.overlap_price
    pairs = zip(least, units.options, strict=True)
    walls = [(1 + price) * (us + options[0].blocking_us) for us, options in pairs]
    walls, late = [*walls, 0.0], [*reduce, 0.0, 0.0]
    found, second = [], []
    for index, us in enumerate(least):
        left = max(0.0, late[index + 2] - walls[index + 1])
        second.append(price * min(us, late[index + 1]))
        found.append(price * min(us, late[index + 1] + left))
    ahead = [0.0, *(one - other for one, other in zip(found, second, strict=True))]
    return found, max(one + more for one, more in zip(found, ahead, strict=False))


def _most(units: CandidateUnits, way: int) -> float:
    """The most that collectives add to a unit in one direction."""
    return max(
        beside[way] - alone[way]
        for times in set(zip(units.compute, units.overlapped, strict=True))
        for alone, beside in zip(*times, strict=True)
    )


def _tails(costs: CandidateCosts, c: Candidate, units: CandidateUnits) -> list[float]:
    """Return by unit the update and refresh of the buckets that it is the first to hold, in us."""
    layout, table = costs.layout(c), units.table
    us = {b.name: table.optimizer_us(b) + table.refresh_us(b) for b in layout.buckets}
    return [sum(us.pop(name, 0.0) for name in item.buckets) for item in layout.instances]
