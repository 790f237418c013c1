"""Exploring candidates under one kind of placements, and which kinds are explored when.

Candidates are taken by their bounds (search.py says how). First come all under the default
placements, then those on each compute mesh whose bound is near the best under the others
(other_placements.py), the best one's first. Where others make the best of the first candidates much
faster, these come before the rest.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from meshwright.ir.errors import PlanError
from meshwright.ir.mesh import Mesh

from ..pipeline.partition import cut_stages
from ..pipeline.schedules import FORWARDS_FIRST, PLAIN
from .ahead import FIRST_S, Ahead
from .candidate_bounds import CandidateBounds
from .candidate_costs import CandidateCosts
from .candidates import Candidate, candidates_of
from .demands import check_defaults
from .fitting import Fitted
from .incumbent import INF, Incumbent, Progress
from .lp_bound import num_actions, tighter, weighted_us
from .made import Asked, Known
from .meshes import Job, make_jobs, make_meshes
from .other_placements import denser, placed_by, placed_for_rows
from .stopping import Stop
from .tightening import tighten, tightened_beside
from .waiting import Waiting


@dataclass(frozen=True)
class Setting:
    """How candidates are considered, whatever their placements. began: when the search did."""

    limit: float
    progress: Progress
    stop: Stop
    processes: int
    began: float

    @property
    def alone(self) -> bool:
        """Return whether no other processes are worth to be started."""
        return self.processes == 1 or time.perf_counter() - self.began < FIRST_S


@dataclass
class Explored:
    """Every candidate under one kind of placements. known: the best bound of each that can store
    the model. before: those under other placements that were explored before most of these.
    left_us: a bound on those never considered."""

    incumbent: Incumbent
    known: dict[Candidate, float]
    num_candidates: int
    before: tuple["Explored", ...] = ()
    left_us: float = INF

    @property
    def bound_us(self) -> float:
        return min(self.left_us, *self.incumbent.bounds.values(), INF)

    def near_meshes(self, best_us: float) -> list[Mesh]:
        """Return compute meshes with a candidate that may come near a step, the nearest first; few
        of them where the gap is not wide."""
        budget = self.incumbent.costs.problem.budget
        wide = best_us > (1 + budget.enough_moved) * self.bound_us
        near = budget.near if wide or self.before else budget.near_placed
        most = (1 + near) * best_us
        meshes = sorted((us, c.compute) for c, us in self.known.items() if us < most)
        found = list(dict.fromkeys(mesh for _, mesh in meshes))
        return found if wide else found[: budget.placed_meshes]


def explore(
    costs: CandidateCosts, setting: Setting, best: Fitted | None = None, mesh: Mesh | None = None
) -> Explored:
    """Consider candidates, the lowest bound first, until none can be faster than the best. best: of
    other placements, or of these. mesh: the only compute mesh of candidates, None for all.

    Where other placements make the best of the first candidates much faster, those on its mesh are
    explored with them before the others: fewer are left then.
    """
    ranked, num_unfit = _ranked(costs, setting, mesh)
    incumbent = Incumbent(costs, setting.limit, setting.progress, num_unfit, best)
    known = {candidate: floor for floor, candidate in ranked}
    found = Explored(incumbent, known, len(ranked) + num_unfit)
    with setting.stop.within(incumbent):
        left = _consider_first(incumbent, ranked)
        if best is None and _gains_otherwise(incumbent):
            best = incumbent.best
            assert best is not None
            again = _explore_again(incumbent, setting, best.costs, best.candidate.compute)
            found.before = (again,)
            incumbent.leave(found.before[0].incumbent.best)
        if not setting.stop.at:
            with Ahead(costs, setting.limit, setting.processes, setting.began) as ahead:
                found.left_us = _considered(incumbent, left, known, ahead)
                return found
    seen = {loser.candidate for loser in incumbent.losers}
    found.left_us = min((us for c, us in known.items() if c not in seen), default=INF)
    return found


def explore_denser(explored: Explored, setting: Setting) -> Explored:
    """Consider candidates with placements that hold fewer bytes, until some are found to fit, and
    return the last that were."""
    first = explored.incumbent
    if first.best is None:
        for costs in denser(first.costs, meshes_of(first.costs)):
            first.doing("placements that hold fewer bytes")
            explored = explore(costs, setting)
            if explored.incumbent.best is not None:
                break
    return explored


def _explore_again(
    first: Incumbent, setting: Setting, costs: CandidateCosts, mesh: Mesh
) -> Explored:
    """Consider candidates on one compute mesh with other placements."""
    first.doing(f"combinations on {mesh} again, with other placements")
    return explore(costs, setting, first.best, mesh)


def finish(explored: Explored, setting: Setting) -> None:
    """Cut anew what is near the best, and bound what limits the gap, unless Ctrl-C ended it."""
    found = explored.incumbent
    if not setting.stop.at:
        with setting.stop.within(found):
            with tightened_beside([found], found.best_us, setting.alone):
                found.improve()
            tighten([found], found.best_us)


def improved(explored: Explored, setting: Setting) -> Explored:
    """Cut anew what is near the best, unless Ctrl-C ended it."""
    if not setting.stop.at:
        with setting.stop.within(explored.incumbent):
            explored.incumbent.improve()
    return explored


def polish_and_bound(explored: Sequence[Explored], last: Incumbent, setting: Setting) -> float:
    """Polish the best, bound what limits the gap again, and return a bound in us on all that was
    explored; after Ctrl-C, return that alone. last: with the best of all."""
    incumbents = [one.incumbent for one in explored]
    if not setting.stop.at:
        with setting.stop.within(last):
            with tightened_beside(incumbents, last.best_us, setting.alone):
                last.polish(min(one.bound_us for one in explored))
            tighten(incumbents, last.best_us)
    return min(one.bound_us for one in explored)


def explored_again(whole: Explored, setting: Setting) -> Iterator[Explored]:
    """Yield what is explored under other placements after all candidates under the default ones:
    those of the best on its mesh, then all others on each mesh whose bound is near the best, then
    those for the rows of the best on its mesh, as long as its micro-batches grow."""
    last = whole.incumbent
    seen = [one.incumbent.costs for one in (whole, *whole.before)]
    for costs, mesh in _placed_otherwise(whole, setting):
        if setting.stop.at:
            return
        if all(costs is not one for one in seen):
            yield (again := improved(_explore_again(last, setting, costs, mesh), setting))
            seen.append(costs)
            last = again.incumbent
    rows = whole.incumbent.rows
    while last.rows > rows and last.mesh.num_devices > 1 and not setting.stop.at:
        rows = last.rows
        costs = whole.incumbent.costs
        costs = costs.under(placing=placed_for_rows(costs, rows))
        yield (again := improved(_explore_again(last, setting, costs, last.mesh), setting))
        last = again.incumbent


def _placed_otherwise(whole: Explored, setting: Setting) -> Iterator[tuple[CandidateCosts, Mesh]]:
    """Yield costs with other placements than the default ones, and the mesh of these."""
    best = whole.incumbent.best
    assert best is not None
    own = best.candidate.compute
    yield best.costs, own
    meshes = list(dict.fromkeys((own, *whole.near_meshes(best.timeline.step_us))))
    if not setting.alone:
        make_jobs(list(_jobs(whole, meshes)), setting.limit, setting.processes)
    for mesh in meshes:
        for _, costs in whole.incumbent.placed_otherwise(mesh):
            yield costs, mesh


def _jobs(whole: Explored, meshes: Sequence[Mesh]) -> Iterator[Job]:
    """Yield the other placements of meshes, and the candidates that may be considered with them."""
    whole.incumbent.doing("other placements")
    for mesh in meshes:
        candidates = [c for c in whole.known if c.compute == mesh]
        incumbent = whole.incumbent
        shares = incumbent.costs.problem.budget.price_shares
        for _, costs in placed_by(incumbent.costs, mesh, incumbent.rows, shares):
            yield Job(costs, mesh, candidates)


def _gains_otherwise(incumbent: Incumbent) -> bool:
    """Return whether other placements make a pipeline that is the best much faster."""
    best, budget = incumbent.best, incumbent.costs.problem.budget
    if best is None or best.candidate.pp == 1:
        return False
    return incumbent.place_again() > budget.much_faster


def _consider_first(
    incumbent: Incumbent, ranked: list[tuple[float, Candidate]]
) -> list[tuple[float, Candidate]]:
    """Consider some candidates before all others, and return those, with their floors."""
    incumbent.doing("bounds of pipelines")
    first = set()
    for floor, candidate in _first(incumbent, ranked):
        first.add(candidate)
        incumbent.doing(f"first candidate {len(first)}: {candidate}")
        incumbent.consider(candidate, floor)
    return [(floor, c) for floor, c in ranked if c not in first]


def _considered(
    incumbent: Incumbent,
    left: list[tuple[float, Candidate]],
    known: dict[Candidate, float],
    ahead: Ahead,
) -> float:
    """Consider what may be faster, with better bounds in `known`; return a bound on the rest."""
    costs, budget = incumbent.costs, incumbent.costs.problem.budget
    waiting = Waiting(costs, left, known, ahead.made, incumbent.enough_us)
    while True:
        bound, enough_us = waiting.least_us, incumbent.enough_us
        if incumbent.simulated == budget.max_simulated:
            return bound
        if bound >= enough_us:
            for loser in incumbent.look_closer(bound):
                waiting.put(loser.bound_us, loser.candidate, Known.PATHS)
            if min(bound, waiting.least_us) >= incumbent.enough_us:
                return bound
            continue
        ahead.give(partial(waiting.coming, enough_us))
        if waiting.bound_next(ahead.ask):
            continue
        bound, candidate, by = waiting.pop()
        count = len(known) - len(waiting)
        incumbent.doing(f"candidate {count} of {len(known)}: {candidate}")
        if by < Known.WHOLLY:
            by = Known(by + 1)
            bound = max(bound, _closer_us(incumbent, candidate, bound, by, ahead))
            if incumbent.passes_over(candidate, bound):
                continue
        if by == Known.WHOLLY and (bound <= waiting.least_us or incumbent.may_gain(bound)):
            made = ahead.ask(Asked(candidate, Known.FITS))
            incumbent.fit(candidate, bound, made.placed if made else None)
        else:
            waiting.put(bound, candidate, by)


def _closer_us(incumbent: Incumbent, c: Candidate, bound: float, by: Known, ahead: Ahead) -> float:
    """Return the bound of a candidate by more than `bound` is of, in us."""
    costs, enough_us, limit = incumbent.costs, incumbent.enough_us, incumbent.limit
    if made := ahead.ask(Asked(c, by, enough_us)):
        return made.bound_us
    if by == Known.PATHS:
        return weighted_us(costs, c, limit)
    return tighter(costs, c, bound, enough_us, limit)


def _first(
    incumbent: Incumbent, ranked: list[tuple[float, Candidate]]
) -> Iterator[tuple[float, Candidate]]:
    """Yield candidates to consider before all others, with their floors.

    They take little time to fit, and with a best step known, bounds need not be tightened beyond
    it. 1F1B is the schedule whose bound in memory is close: the floors of all pipelines are not.
    Pipelines come once the others are considered; none that cannot be faster, or whose schedule is
    long, is bounded.
    """
    budget, bounds = incumbent.costs.problem.budget, CandidateBounds(incumbent.costs)
    yield from [(floor, c) for floor, c in ranked if c.pp == 1][: budget.first_candidates]
    close = FORWARDS_FIRST if incumbent.costs.problem.traced.has_router_loss else PLAIN[0]
    pipelines = [one for one in ranked if one[1].pp > 1 and one[1].schedule == close]
    plain = [one for one in pipelines if num_actions(one[1]) <= budget.far_actions]
    enough_us, limit = incumbent.enough_us, incumbent.limit
    faster = [one for one in plain[: budget.bounded_pipelines] if one[0] < enough_us]
    bounded = sorted((bounds.bound_us(c, limit, enough_us), floor, c) for floor, c in faster)
    yield from [(floor, c) for us, floor, c in bounded[: budget.first_pipelines] if us < enough_us]


def space_of(costs: CandidateCosts) -> list[Candidate]:
    pins, traced = costs.problem.pins, costs.problem.traced
    count = len(traced.segmented.instances)
    sizes = costs.problem.cluster, costs.problem.global_batch
    found = candidates_of(traced, *sizes, pins, costs.problem.budget, costs.problem.split)
    if not found:  # the messages of the fixed path say which demands collide
        stages = check_defaults(costs.problem.cluster, costs.problem.global_batch, pins)
        cut_stages([1.0] * count, stages, pins.cuts)
        raise PlanError(
            f"no mesh of {costs.problem.cluster.num_devices} devices divides a global batch of "
            f"{costs.problem.global_batch} rows over {count} segments under these pins; drop one"
        )
    return found


def meshes_of(costs: CandidateCosts) -> list[Mesh]:
    """Return the compute meshes of all candidates."""
    return list(dict.fromkeys(c.compute for c in space_of(costs)))


def _ranked(
    costs: CandidateCosts, setting: Setting, mesh: Mesh | None
) -> tuple[list[tuple[float, Candidate]], int]:
    """Candidates whose parameters can fit, by floor and then by name; and how many cannot."""
    space = [c for c in space_of(costs) if mesh in (None, c.compute)]
    make_meshes(costs, setting.limit, space, setting.processes)
    for mesh in sorted({c.compute for c in space}, key=lambda mesh: mesh.axes):
        setting.progress(f"placements for {str(mesh) or 'one device'}")
        costs.sharding(mesh)
    with costs.memo.clock.layer("bounds"):
        fitting = [c for c in space if costs.stored_bytes(c) <= setting.limit]
        setting.progress(f"{len(space)} candidates, {len(fitting)} of which can store the model")
        ranked = sorted((CandidateBounds(costs).floor_us(c), c) for c in fitting)
    return ranked, len(space) - len(fitting)
