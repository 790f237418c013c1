"""The outer search: the fastest plan that fits, and how far from the best it may be.

Candidates (candidates.py) are taken in order of their lower bound (candidate_bounds.py), a floor
first that costs next to nothing, ties by name, until the next bound is no better than the best step
found (incumbent.py). What was not simulated cannot beat the bound it has, so

    bound = min(best step, bounds of candidates left over, bounds of pipelines simulated)
    gap = best / bound - 1

A candidate counts with its bound even when simulated, as other cuts and options of it were not.
The bound is over meshes and their outer axis, micro-batches, ZeRO levels, schedules, cuts and the
option of every instance, with the placements that the sharding ILP gives for each compute mesh by
default, and on the meshes that were searched again with the others, too (exploring.py).
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from meshwright.ir.capture.collector import rarely_collected
from meshwright.ir.errors import InfeasibleError
from meshwright.ir.mesh import Mesh
from meshwright.ir.plan import Plan
from meshwright.ir.traced import Traced

from ..budget import BUDGET, SearchBudget
from ..clock import Clock
from ..hardware.cluster import Cluster
from ..hardware.usable import usable_bytes
from ..pipeline.partition import cut_stages
from ..remat.options import CHOSEN
from ..remat.rules import check_rule
from ..simulate.predict import Prediction, predict, with_costs
from .candidate_costs import CandidateCosts
from .candidates import Candidate
from .elsewhere import overfull
from .exploring import (
    Setting,
    explore,
    explore_denser,
    explored_again,
    finish,
    improved,
    meshes_of,
    polish_and_bound,
    space_of,
)
from .fitting import Fitted, fixed_pins
from .incumbent import INF, Loser, Progress
from .infeasible import Refusal
from .make_plan import make_plan, resolve_schedule, stages_of_cuts
from .memo import Memo
from .other_placements import densest
from .pins import Pins, pins_for
from .problem import Problem
from .stopping import Stop


@dataclass(frozen=True)
class Found:
    """The winner, what it was priced by, its bound and what else was considered. num_placements:
    of the meshes, with which combinations were considered. stopped: where Ctrl-C ended the
    search; "" where it ran to its end."""

    best: Fitted
    costs: CandidateCosts
    bound_us: float
    losers: tuple[Loser, ...]
    num_placements: int
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
    """Compare every candidate that the pins leave, those on some compute meshes with other
    placements, too (exploring.py). stop: whether Ctrl-C ends it with the best so far.

    Raises InfeasibleError where nothing fits. advise: look for the nearest changes that would,
    which takes seconds.
    """
    _check(costs)
    stop = stop or Stop()
    limit = usable_bytes(costs.problem.cluster)
    if overfull(costs.problem):
        raise _unfit(costs, limit, progress, advise, len(space_of(costs)))
    setting = Setting(limit, progress, stop, processes, time.perf_counter())
    whole = explore_denser(explore(costs, setting), setting)
    first = last = whole.incumbent
    if first.best is None:
        dense = densest(costs, meshes_of(costs))
        raise _unfit(dense, limit, progress, advise, whole.num_candidates)
    explored = [whole, *whole.before]
    finish(whole, setting)
    with stop.within(first):
        for again in () if stop.at else explored_again(whole, setting):
            explored.append(again)
            last = again.incumbent
    for one in whole.before:
        if one.incumbent.best is last.best and not stop.at:
            last = improved(one, setting).incumbent
    bound_us = polish_and_bound(explored, last, setting)
    if not stop.at:
        with stop.within(last):
            last.cut_further(bound_us)
    assert last.best is not None
    losers = _merged(x for one in explored for x in one.incumbent.losers)
    return Found(
        last.best,
        last.priced_by,
        min(last.best.timeline.step_us, bound_us),
        tuple(x for x in losers if x.candidate != last.best.candidate)
        + _unseen(whole.known, losers),
        len(explored),
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
