"""The outer search: the fastest plan that fits, and how far from the best it may be.

Candidates (candidates.py) are taken in order of their lower bound (candidate_bounds.py), a floor
first that costs next to nothing, ties by name, until the next bound is no better than the best step
found (incumbent.py). What was not simulated cannot beat the bound it has, so

    bound = min(best step, bounds of candidates left over, bounds of pipelines simulated)
    gap = best / bound - 1

A candidate counts with its bound even when simulated, as other cuts and options of it were not.
The bound is over meshes and their outer axis, micro-batches, ZeRO levels, schedules, cuts and the
option of every instance, with the placements that the sharding ILP gives for each compute mesh at
the default price of a byte. Where another price made the best plan faster, the bound is over the
placements at that price as well.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from meshwright.ir.capture.collector import rarely_collected
from meshwright.ir.errors import InfeasibleError, PlanError
from meshwright.ir.mesh import Mesh
from meshwright.ir.plan import Plan
from meshwright.ir.traced import Traced

from ..budget import BUDGET, SearchBudget
from ..clock import Clock
from ..hardware.cluster import Cluster
from ..hardware.usable import usable_bytes
from ..pipeline.partition import cut_stages
from ..pipeline.schedules import FORWARDS_FIRST, PLAIN
from ..remat.options import CHOSEN
from ..remat.rules import check_rule
from ..simulate.predict import Prediction, predict, with_costs
from .ahead import FIRST_S, Ahead
from .candidate_bounds import CandidateBounds
from .candidate_costs import CandidateCosts
from .candidates import Candidate, candidates_of
from .demands import check_defaults
from .elsewhere import overfull
from .fitting import Fitted, fixed_pins
from .incumbent import INF, Incumbent, Loser, Progress
from .infeasible import Refusal
from .lp_bound import tighter, weighted_us
from .made import Asked, Known
from .make_plan import make_plan, resolve_schedule, stages_of_cuts
from .memo import Memo
from .meshes import make_meshes
from .pins import Pins, pins_for
from .problem import Problem
from .stopping import Stop
from .waiting import Waiting


@dataclass(frozen=True)
class Found:
    """The winner, what it was priced by, its bound and what else was considered. num_prices: of a
    byte, at which placements were solved for all combinations. stopped: where Ctrl-C ended the
    search; "" where it ran to its end."""

    best: Fitted
    costs: CandidateCosts
    bound_us: float
    losers: tuple[Loser, ...]
    num_prices: int
    num_candidates: int
    num_simulated: int
    num_unfit: int
    budget: SearchBudget
    stopped: str = ""

    @property
    def gap(self) -> float:
        gap = self.best.timeline.step_us / self.bound_us - 1
        return gap if gap > 1e-9 else 0.0  # below that it is rounding


@rarely_collected()
def search_plan(
    traced: Traced,
    cluster: Cluster,
    *,
    seq: int,
    global_batch: int,
    pins: Pins,
    progress: Progress = lambda _: None,
    budget: SearchBudget = BUDGET,
    clock: Clock | None = None,
    stop: Stop | None = None,
    processes: int = 1,
) -> tuple[Plan, Found, Prediction]:
    """The fastest plan under the pins that fits every device, with what was predicted and why.

    clock: to count the search's time by, beside what it has counted. stop: whether Ctrl-C ends it
    with the best plan so far, where there is one. processes: that may bound candidates at once; the
    plan is the same for any number.

    Raises PlanError for pins that contradict each other or the sizes, InfeasibleError with the
    nearest changes that fit when nothing does.
    """
    clock = clock or Clock()
    problem = Problem(traced, cluster, seq, global_batch, pins_for(traced, pins), budget)
    costs = CandidateCosts(problem, Memo(clock))
    with clock.layer("the rest"):
        found = search(costs, progress, stop, processes=processes)
    plan = plan_of(found, problem)
    prediction = predict(plan, cluster)
    limits = ("bound_us", found.bound_us), ("gap", found.gap)
    plan = replace(plan, effort=budget.effort)
    return with_costs(plan, prediction, cluster, *limits), found, prediction


def plan_of(found: Found, problem: Problem) -> Plan:
    """Return the plan of a search's winner."""
    best = found.best
    chosen = best.candidate.recompute == CHOSEN or problem.offloads
    return make_plan(
        problem.traced,
        problem.cluster,
        seq=problem.seq,
        global_batch=problem.global_batch,
        pins=fixed_pins(best, problem.pins),
        sharded=found.costs.sharding(best.candidate.compute),
        saved=best.saved if chosen else None,
    )


def search(
    costs: CandidateCosts,
    progress: Progress = lambda _: None,
    stop: Stop | None = None,
    advise: bool = True,
    processes: int = 1,
) -> Found:
    """Compare every candidate that the pins leave; those on the compute mesh of the best again with
    its placements, where they are of another price of a byte. stop: whether Ctrl-C ends it with the
    best so far.

    Raises InfeasibleError where nothing fits. advise: look for the nearest changes that would,
    which takes seconds.
    """
    _check(costs)
    stop = stop or Stop()
    limit = usable_bytes(costs.problem.cluster)
    if overfull(costs.problem):
        raise _unfit(costs, limit, progress, advise, len(_space(costs)))
    setting = _Setting(limit, progress, stop, processes, time.perf_counter())
    whole = _explore(costs, setting)
    first = last = whole.incumbent
    if first.best is None:
        raise _unfit(costs, limit, progress, advise, whole.num_candidates)
    explored = [whole, *whole.before]
    _finished(whole, setting)
    with stop.within(first):
        for again in () if stop.at else _again(whole, setting):
            explored.append(again)
            last = again.incumbent
    for one in whole.before:
        if one.incumbent.best is last.best and not stop.at:
            last = _finished(one, setting).incumbent
    assert last.best is not None
    bounding = [one for one in explored if one is whole or one.incumbent.costs is last.priced_by]
    losers = _merged(x for one in bounding for x in one.incumbent.losers)
    return Found(
        last.best,
        last.priced_by,
        min(last.best.timeline.step_us, *(one.bound_us for one in bounding)),
        tuple(x for x in losers if x.candidate != last.best.candidate)
        + _unseen(whole.known, losers),
        len(bounding),
        whole.num_candidates,
        sum(one.incumbent.simulated for one in explored),
        first.num_unfit,
        costs.problem.budget,
        stop.at,
    )


def _unfit(
    costs: CandidateCosts, limit: float, progress: Progress, advise: bool, count: int
) -> InfeasibleError:
    """What to raise where none of `count` candidates fits."""
    refusal = Refusal(costs, limit)
    if advise:
        progress("nothing fits; looking for what would")
        return InfeasibleError(refusal.text())
    text, need = refusal.shortage()
    return InfeasibleError(f"{text}; of {count} combinations", need)


@dataclass(frozen=True)
class _Setting:
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
class _Explored:
    """Every candidate under one kind of placements. known: the best bound of each that can store
    the model. before: those under other placements that were explored before most of these.
    left_us: a bound on those never considered."""

    incumbent: Incumbent
    known: dict[Candidate, float]
    num_candidates: int
    before: tuple["_Explored", ...] = ()
    left_us: float = INF

    @property
    def bound_us(self) -> float:
        return min(self.left_us, *self.incumbent.bounds.values(), INF)

    def near_meshes(self, best_us: float) -> list[Mesh]:
        """Return compute meshes with a candidate that may come near a step, the nearest first."""
        most = (1 + self.incumbent.costs.problem.budget.near) * best_us
        near = sorted((us, c.compute) for c, us in self.known.items() if c.pp > 1 and us < most)
        return list(dict.fromkeys(mesh for _, mesh in near))


def _explore(
    costs: CandidateCosts, setting: _Setting, best: Fitted | None = None, mesh: Mesh | None = None
) -> _Explored:
    """Consider candidates, the lowest bound first, until none can be faster than the best. best: of
    other placements, or of these. mesh: the only compute mesh of candidates, None for all.

    Where the placements at another price of a byte make the best of the first candidates much
    faster, those on its mesh are explored with them before the others: fewer are left then.
    """
    ranked, num_unfit = _ranked(costs, setting, mesh)
    incumbent = Incumbent(costs, setting.limit, setting.progress, num_unfit, best)
    if best is not None and best.costs is not costs:
        incumbent.leave(best)
    known = {candidate: floor for floor, candidate in ranked}
    found = _Explored(incumbent, known, len(ranked) + num_unfit)
    with setting.stop.within(incumbent):
        left = _consider_first(incumbent, ranked)
        if best is None and _gains_by_price(incumbent):
            found.before = (_explore_again(incumbent, setting),)
            incumbent.leave(found.before[0].incumbent.best)
        if not setting.stop.at:
            with Ahead(costs, setting.limit, setting.processes, setting.began) as ahead:
                found.left_us = _considered(incumbent, left, known, ahead)
                return found
    seen = {loser.candidate for loser in incumbent.losers}
    found.left_us = min((us for c, us in known.items() if c not in seen), default=INF)
    return found


def _explore_again(
    first: Incumbent,
    setting: _Setting,
    costs: CandidateCosts | None = None,
    mesh: Mesh | None = None,
) -> _Explored:
    """Consider candidates on one compute mesh with other placements; on the mesh of the best with
    its placements where none are given."""
    best = first.best
    assert best is not None
    mesh = mesh or best.candidate.compute
    first.doing(f"combinations on {mesh} again, with other placements")
    return _explore(costs or best.costs, setting, best, mesh)


def _finished(explored: _Explored, setting: _Setting) -> _Explored:
    """Finish what was explored, unless Ctrl-C ended it."""
    if not setting.stop.at:
        with setting.stop.within(explored.incumbent):
            explored.incumbent.finish(setting.alone)
    return explored


def _again(whole: _Explored, setting: _Setting) -> Iterator[_Explored]:
    """Yield what is explored after all candidates at the default price of a byte: those on the mesh
    of the best with its placements, and where another price made a plan much faster, those on each
    mesh whose bound is near the best."""
    before, last = whole.before, whole.incumbent
    seen = [one.incumbent.costs for one in (whole, *before)]
    if all(last.priced_by is not one for one in seen):
        yield (again := _finished(_explore_again(last, setting), setting))
        seen.append(again.incumbent.costs)
        last = again.incumbent
    for mesh in whole.near_meshes(last.best_us) if before else ():
        if setting.stop.at:
            return
        costs = next((other for _, other in whole.incumbent.at_prices(mesh)), None)
        if costs is not None and all(costs is not one for one in seen):
            yield (again := _finished(_explore_again(last, setting, costs, mesh), setting))
            last = again.incumbent


def _gains_by_price(incumbent: Incumbent) -> bool:
    """Return whether another price of a byte makes a pipeline that is the best much faster."""
    best, budget = incumbent.best, incumbent.costs.problem.budget
    return best is not None and best.candidate.pp > 1 and incumbent.reprice() > budget.much_faster


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
    Pipelines come once the others are considered; none that cannot be faster is bounded.
    """
    budget, bounds = incumbent.costs.problem.budget, CandidateBounds(incumbent.costs)
    yield from [(floor, c) for floor, c in ranked if c.pp == 1][: budget.first_candidates]
    close = FORWARDS_FIRST if incumbent.costs.problem.traced.has_router_loss else PLAIN[0]
    plain = [(floor, c) for floor, c in ranked if c.pp > 1 and c.schedule == close]
    enough_us, limit = incumbent.enough_us, incumbent.limit
    faster = [one for one in plain[: budget.bounded_pipelines] if one[0] < enough_us]
    bounded = sorted((bounds.bound_us(c, limit, enough_us), floor, c) for floor, c in faster)
    yield from [(floor, c) for us, floor, c in bounded[: budget.first_pipelines] if us < enough_us]


def _merged(losers: Iterable[Loser]) -> list[Loser]:
    """One of each candidate: the fastest that was simulated, else the one least bounded."""
    found: dict[Candidate, Loser] = {}
    for loser in losers:
        known = found.setdefault(loser.candidate, loser)
        if loser is not known and _order(loser) < _order(known):
            found[loser.candidate] = loser
    return list(found.values())


def _order(loser: Loser) -> tuple[float, float]:
    return loser.step_us or INF, loser.bound_us


def _unseen(known: dict[Candidate, float], seen: list[Loser]) -> tuple[Loser, ...]:
    """The best-bounded candidate of every mesh that was never simulated."""
    meshes = {x.candidate.mesh for x in seen}
    found: dict[Mesh, Loser] = {}
    for bound, candidate in sorted((bound, c) for c, bound in known.items()):
        if candidate.mesh not in meshes:
            fits = False if bound == INF else None
            found.setdefault(candidate.mesh, Loser(candidate, bound, fits=fits))
    return tuple(found.values())


def _check(costs: CandidateCosts) -> None:
    """The pins against each other and the sizes, before anything is solved."""
    pins = costs.problem.pins
    resolve_schedule(pins)
    if pins.cuts is not None:
        count = len(costs.problem.traced.segmented.instances)
        cut_stages([1.0] * count, stages_of_cuts(pins), pins.cuts)
    if pins.recompute is not None:
        check_rule(pins.recompute, list(costs.problem.traced.joints.values()))


def _space(costs: CandidateCosts) -> list[Candidate]:
    pins, traced = costs.problem.pins, costs.problem.traced
    count = len(traced.segmented.instances)
    sizes = costs.problem.cluster, costs.problem.global_batch
    found = candidates_of(traced, *sizes, pins, costs.problem.budget)
    if not found:  # the messages of the fixed path say which demands collide
        stages = check_defaults(costs.problem.cluster, costs.problem.global_batch, pins)
        cut_stages([1.0] * count, stages, pins.cuts)
        raise PlanError(
            f"no mesh of {costs.problem.cluster.num_devices} devices divides a global batch of "
            f"{costs.problem.global_batch} rows over {count} segments under these pins; drop one"
        )
    return found


def _ranked(
    costs: CandidateCosts, setting: _Setting, mesh: Mesh | None
) -> tuple[list[tuple[float, Candidate]], int]:
    """Candidates whose parameters can fit, by floor and then by name; and how many cannot."""
    space = [c for c in _space(costs) if mesh in (None, c.compute)]
    make_meshes(costs, setting.limit, space, setting.processes)
    for mesh in sorted({c.compute for c in space}, key=lambda mesh: mesh.axes):
        setting.progress(f"placements for {str(mesh) or 'one device'}")
        costs.sharding(mesh)
    with costs.memo.clock.layer("bounds"):
        fitting = [c for c in space if costs.stored_bytes(c) <= setting.limit]
        setting.progress(f"{len(space)} candidates, {len(fitting)} of which can store the model")
        ranked = sorted((CandidateBounds(costs).floor_us(c), c) for c in fitting)
    return ranked, len(space) - len(fitting)
