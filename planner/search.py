"""The outer search: the fastest plan that fits, and how far from the best it may be.

Candidates (space.py) are taken in order of their lower bound (evaluate.py), ties by name; each is
cut within memory and simulated, until the next bound is no better than the best step found. What
was not simulated cannot beat the bound it has, so

    bound = min(best step, bounds of candidates left over, bounds of pipelines simulated)
    gap = best / bound - 1

A candidate counts with its bound even when simulated, as other cuts and levels of it were not.
Then the pipelines of least bound are simulated under interleaved and zero-bubble schedules too,
unless a pin says which to take; such a step can only better the result. The bound is not over
them, the floor is: what ranks are busy for on average, their collectives and the end of the step.
Both are over meshes, micro-batches, ZeRO levels, cuts and the level of every instance, with the
placements that the sharding ILP gives for each tp at its price per byte.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from meshwright.ir.errors import InfeasibleError, PlanError
from meshwright.ir.placement import Mesh
from meshwright.ir.plan import Plan
from meshwright.ir.traced import Traced

from .catalogue import CPU
from .cluster import Cluster
from .cuts import cut_stages
from .driver import choose_mesh, choose_micro_batch, choose_schedule, make_plan
from .evaluate import Evaluator
from .fitting import Fitted, fit, fixed_pins, never_fits
from .infeasible import Refusal
from .levels import CHOSEN
from .memory import usable_bytes
from .pins import Pins
from .predict import Prediction, predict, with_costs
from .recompute import check_rule
from .schedules import check_sizes
from .space import Candidate, candidates, rescheduled

Progress = Callable[[str], None]

# Candidates simulated at most; those beyond leave their bounds to the gap.
MAX_SIMULATED = 200
# Pipelines that are tried under the schedules beyond 1F1B and GPipe.
MAX_RESCHEDULED = 4
# On four H200s ZBV did not finish its first step (2026-11-21); on GPUs it is taken by pin alone.
UNPROVEN_ON_GPUS = ("zbv",)


@dataclass(frozen=True)
class Loser:
    """A candidate that was not chosen: its bound, and its step where it was simulated.

    fits: False where no cuts fit the memory, None where that was never asked.
    """

    candidate: Candidate
    bound_us: float
    step_us: float | None = None
    fits: bool | None = None

    def reason(self, best: Fitted) -> str:
        """One line."""
        won = best.timeline.step_us
        if self.step_us is not None:
            return f"{self.step_us / 1e3:,.1f} ms a step, {self.step_us / won - 1:+.1%}"
        if self.fits is False:
            return "its cuts do not fit the memory"
        return f"at least {self.bound_us / 1e3:,.1f} ms a step, {self.bound_us / won - 1:+.1%}"


@dataclass(frozen=True)
class Found:
    """The winner, its bound and what else was looked at.

    bound_us: of 1F1B and GPipe, or the best step where that is less. floor_us: of any schedule.
    """

    best: Fitted
    bound_us: float
    floor_us: float
    losers: tuple[Loser, ...]
    num_candidates: int
    num_simulated: int
    num_unfit: int

    @property
    def gap(self) -> float:
        return self.best.timeline.step_us / self.bound_us - 1


def search_plan(
    traced: Traced,
    cluster: Cluster,
    *,
    seq: int,
    global_batch: int,
    pins: Pins,
    progress: Progress = lambda _: None,
) -> tuple[Plan, Found, Prediction]:
    """The fastest plan under the pins that fits every device, with what was predicted and why.

    Raises PlanError for pins that contradict each other or the sizes, InfeasibleError with the
    nearest changes that fit when nothing does.
    """
    evaluator = Evaluator(traced, cluster, seq, global_batch, pins)
    found = search(evaluator, progress)
    best = found.best
    plan = make_plan(
        traced,
        cluster,
        seq=seq,
        global_batch=global_batch,
        pins=fixed_pins(best, pins),
        sharded=evaluator.sharding(best.candidate.tp),
        saved=best.saved if best.candidate.recompute == CHOSEN else None,
    )
    prediction = predict(plan, cluster)
    limits = ("bound_us", found.bound_us), ("gap", found.gap)
    return with_costs(plan, prediction, cluster, *limits), found, prediction


def search(evaluator: Evaluator, progress: Progress = lambda _: None) -> Found:
    """Compare every candidate that the pins leave."""
    _check(evaluator)
    limit = usable_bytes(evaluator.cluster)
    ranked, num_unfit = _ranked(evaluator, limit, progress)
    best: Fitted | None = None
    losers: list[Loser] = []
    simulated, left = 0, float("inf")
    bounds = []  # of what was looked at; simulated cuts are not all cuts
    for bound, candidate in ranked:
        if best is not None and bound >= best.timeline.step_us:
            left = bound
            break
        if simulated == MAX_SIMULATED:
            left = bound
            break
        bound = max(bound, evaluator.bound_us(candidate, limit))
        if bound == float("inf"):
            num_unfit += 1
            losers.append(Loser(candidate, bound, fits=False))
            continue
        if best is not None and bound >= best.timeline.step_us:
            losers.append(Loser(candidate, bound))
            continue
        fitted = fit(evaluator, candidate, limit)
        if fitted is not None or not never_fits(evaluator, candidate):
            bounds.append(bound)
        if fitted is None:
            num_unfit += 1
            losers.append(Loser(candidate, bound, fits=False))
            continue
        simulated += 1
        losers.append(Loser(candidate, bound, fitted.timeline.step_us, True))
        if best is None or fitted.timeline.step_us < best.timeline.step_us:
            best = fitted
            progress(f"{fitted.timeline.step_us / 1e3:,.1f} ms: {candidate}")
    if best is None:
        raise InfeasibleError(Refusal(evaluator, limit).text())
    for fitted in _rescheduled(evaluator, ranked, limit):
        simulated += 1
        losers.append(
            Loser(fitted.candidate, fitted.timeline.step_us, fitted.timeline.step_us, True)
        )
        if fitted.timeline.step_us < best.timeline.step_us:
            best = fitted
            progress(f"{fitted.timeline.step_us / 1e3:,.1f} ms: {fitted.candidate}")
    won = best.candidate
    bound = min(best.timeline.step_us, left, *bounds)
    others = tuple(x for x in losers if x.candidate != won) + _unseen(ranked, losers)
    floor = min(bound, _floor_us(evaluator, ranked))
    return Found(best, bound, floor, others, len(ranked) + num_unfit, simulated, num_unfit)


def _rescheduled(
    evaluator: Evaluator, ranked: list[tuple[float, Candidate]], limit: float
) -> Iterator[Fitted]:
    """The pipelines of least bound that fit, under the schedules that no bound was asked for."""
    pins, count = evaluator.pins, len(evaluator.traced.segmented.instances)
    if pins.schedule is not None or pins.chunks is not None or pins.cuts is not None:
        return
    tried, left_out = 0, unproven(evaluator.cluster)
    pipelines = [c for _, c in ranked if c.pp > 1 and c.schedule == "1f1b"]
    for candidate in pipelines[: 4 * MAX_RESCHEDULED]:  # not all of them fit
        others = [c for c in rescheduled(candidate, count) if c.schedule not in left_out]
        found = [fit(evaluator, c, limit) for c in others]
        yield from (fitted for fitted in found if fitted is not None)
        tried += any(fitted is not None for fitted in found)
        if tried == MAX_RESCHEDULED:
            return


def unproven(cluster: Cluster) -> tuple[str, ...]:
    """Schedules that a search leaves out on a cluster."""
    return () if cluster.device.name == CPU.device.name else UNPROVEN_ON_GPUS


def _floor_us(evaluator: Evaluator, ranked: list[tuple[float, Candidate]]) -> float:
    """What no pipeline beats under any schedule; inf without any."""
    if evaluator.pins.schedule is not None or evaluator.pins.chunks is not None:
        return float("inf")
    pipelines = (c for _, c in ranked if c.pp > 1 and c.schedule == "1f1b")
    return min(map(evaluator.floor_us, pipelines), default=float("inf"))


def _unseen(ranked: list[tuple[float, Candidate]], seen: list[Loser]) -> tuple[Loser, ...]:
    """The best-bounded candidate of every mesh that was never simulated."""
    meshes = {x.candidate.mesh for x in seen}
    found: dict[Mesh, Loser] = {}
    for bound, candidate in ranked:
        if candidate.mesh not in meshes:
            found.setdefault(candidate.mesh, Loser(candidate, bound))
    return tuple(found.values())


def _check(evaluator: Evaluator) -> None:
    """The pins against each other and the sizes, before anything is solved."""
    pins = evaluator.pins
    _, chunks = choose_schedule(pins)
    if pins.cuts is not None:
        count = len(evaluator.traced.segmented.instances)
        stages = pins.pp * chunks if pins.pp and pins.schedule else pins.cuts.count(",") + 2
        cut_stages([1.0] * count, stages, pins.cuts)
    if pins.recompute is not None:
        check_rule(pins.recompute, list(evaluator.traced.joints.values()))


def _space(evaluator: Evaluator) -> list[Candidate]:
    pins, traced = evaluator.pins, evaluator.traced
    count = len(traced.segmented.instances)
    found = list(candidates(evaluator.cluster, evaluator.global_batch, pins, count))
    if not found:  # the messages of the fixed path say which demands collide
        mesh = choose_mesh(evaluator.cluster.num_devices, pins)
        _, num_microbatches = choose_micro_batch(evaluator.global_batch, mesh, pins)
        name, chunks = choose_schedule(pins)
        check_sizes(name, mesh.size("pp"), num_microbatches)
        cut_stages([1.0] * count, mesh.size("pp") * chunks, pins.cuts)
        raise PlanError(
            f"no mesh of {evaluator.cluster.num_devices} devices divides a global batch of "
            f"{evaluator.global_batch} rows over {count} segments under these pins; drop one"
        )
    return found


def _ranked(
    evaluator: Evaluator, limit: float, progress: Progress
) -> tuple[list[tuple[float, Candidate]], int]:
    """Candidates whose parameters can fit, by bound and then by name; and how many cannot."""
    space = _space(evaluator)
    for tp in sorted({c.tp for c in space}):
        progress(f"placements for tp={tp}")
        evaluator.sharding(tp)
    fitting = [c for c in space if evaluator.stored_bytes(c) <= limit]
    progress(f"{len(space)} candidates, {len(fitting)} of which can store the model")
    ranked = sorted((evaluator.bound_us(c), c) for c in fitting)
    return ranked, len(space) - len(fitting)
