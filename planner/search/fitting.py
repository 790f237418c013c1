"""Cuts and options of a candidate within memory, and its simulated step.

Cuts and options to try come from cutting.py; the first that fits of every way is taken. What comes
near the best is then cut anew by a descent on the longest path (descent.py), and the best of all is
polished.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from meshwright.ir.plan import silent_stages

from ..budget import LpEffort, SearchBudget
from ..hardware.usable import usable_host_bytes
from ..pipeline.partition import stages_of
from ..pipeline.schedules import PLAIN, stage_ranks
from ..remat.options import fastest
from ..remat.rules import SavedSet
from ..remat.selection import Picks, is_exact
from ..simulate.least_step import least_step_us
from ..simulate.simulator import Timeline, simulate
from ..simulate.stage_memory import Peak, host_bytes, model_peaks
from ..simulate.step_model import StepModel
from .candidate_bounds import CandidateBounds
from .candidate_costs import CandidateCosts
from .candidate_units import placed_under
from .candidates import Candidate
from .cutting import Placed, cutters_of, rounded
from .descent import descend
from .instances import on_stages
from .lp_bound import num_actions, tightened
from .pins import Pins

INF = float("inf")


@dataclass(frozen=True)
class Fitted:
    """A candidate in stages that fit: the first unit of each, the option of each unit, what that
    keeps, its step, and its peak. It is simulated where its timeline is asked for."""

    costs: CandidateCosts = field(repr=False, compare=False)
    candidate: Candidate
    starts: tuple[int, ...]
    picks: Picks
    saved: tuple[SavedSet, ...]
    model: StepModel
    peak_bytes: float

    @cached_property
    def timeline(self) -> Timeline:
        """Return the timeline of the step, without its events."""
        with self.costs.memo.clock.layer("simulation"):
            of, schedules = self.candidate.listing, self.costs.memo.schedules
            known = schedules.schedule(of) is self.model.schedule
            repeats = schedules.repeats(of) if known else None
            return simulate(self.model, events=False, repeats=repeats)

    @cached_property
    def least_us(self) -> float:
        """Return a bound on the step."""
        return _least_us(self.costs, self.candidate, self.model)

    def beats(self, step_us: float) -> bool:
        """Return whether the step is shorter than another; simulate it where its bound is."""
        return self.least_us < step_us and self.timeline.step_us < step_us

    def exceeds(self, step_us: float) -> bool:
        """Return whether the step is longer than another; simulate it where its bound is not."""
        return self.least_us > step_us or self.timeline.step_us > step_us


def _least_us(costs: CandidateCosts, c: Candidate, model: StepModel) -> float:
    with costs.memo.clock.layer("bounds"):
        silent = costs.units_of(c).most_silent(c.num_stages)
        return least_step_us(model, costs.memo.schedules.waits(c.listing, silent))


Found = tuple[tuple[Placed, float], ...]  # what fits, with its peak in bytes


def fit(
    costs: CandidateCosts, c: Candidate, limit_bytes: float, placed: Found | None = None
) -> Fitted | None:
    """Cut and simulate; None where nothing is found that fits the memory. placed: what is known to
    fit."""
    return fastest_of(ways_to_fit(costs, c, limit_bytes, placed))


def ways_to_fit(
    costs: CandidateCosts, c: Candidate, limit_bytes: float, placed: Found | None = None
) -> tuple[Fitted, ...]:
    """Return a candidate under cuts and options that fit, one of each way to cut; as for `fit`."""
    with costs.memo.clock.layer("cuts and options"):
        if placed is None:
            fitting = _found(costs, c, limit_bytes)
        else:
            fitting = ((one, step_of(costs, c, *one), peak) for one, peak in placed)
        return tuple(_fitted(costs, c, *one) for one in fitting)


def fastest_of(ways: Iterable[Fitted]) -> Fitted | None:
    """Return the fastest of several, the first by cuts and options among equals; None of none. One
    whose bound is above a step is not simulated."""
    found: Fitted | None = None
    for way in sorted(ways, key=lambda f: f.least_us):
        if found is None:
            found = way
        elif not way.exceeds(found.timeline.step_us):
            found = min(found, way, key=lambda f: (f.timeline.step_us, f.starts, f.picks))
    return found


def _fitted(
    costs: CandidateCosts, c: Candidate, placed: Placed, model: StepModel, peak_bytes: float
) -> Fitted:
    options = costs.options(c)
    pieces = [i.piece for i in costs.layout(c).instances]
    saved = tuple(options[piece][k][0] for piece, k in zip(pieces, placed[1], strict=True))
    return Fitted(costs, c, *placed, saved, model, peak_bytes)


def descended(costs: CandidateCosts, fitted: Fitted, limit_bytes: float) -> tuple[Fitted, ...]:
    """Cut again for a shorter critical path, first under the fastest options and then under those
    that fit, and return what was there before and each that was found."""
    with costs.memo.clock.layer("cuts and options"):
        return (fitted, *_descended(costs, fitted, limit_bytes))


def _descended(costs: CandidateCosts, fitted: Fitted, limit_bytes: float) -> Iterator[Fitted]:
    c, units = fitted.candidate, costs.units_of(fitted.candidate)
    if costs.problem.pins.cuts is not None or c.num_stages == 1:
        return
    starts, seen = fitted.starts, set[tuple[int, ...]]()
    picks = tuple(fastest([(sum(us), 0.0) for us in times]) for times in units.compute)
    for _ in range(costs.problem.budget.descents_of(num_actions(c))):
        starts = descend(costs, c, starts, picks)
        other = _at(costs, c, starts, limit_bytes) if starts not in seen else None
        if other is None:
            return
        seen.add(starts)
        picks = other.picks
        yield other


def refitted(
    costs: CandidateCosts, c: Candidate, limit_bytes: float, effort: LpEffort
) -> Fitted | None:
    """Return a candidate in the stages of its LP bound made with an effort, cut again."""
    bound = tightened(costs, c, limit_bytes, effort=effort)
    if costs.problem.pins.cuts is not None or not bound.stage_us:
        return None
    starts = rounded(costs.units_of(c).least_compute_us, bound.stage_us)
    found = fitted_to(costs, c, starts, limit_bytes)
    return found and fastest_of(descended(costs, found, limit_bytes))


def fitted_to(
    costs: CandidateCosts, c: Candidate, starts: tuple[int, ...], limit_bytes: float
) -> Fitted | None:
    """Return a candidate in these cuts; None where no options fit."""
    with costs.memo.clock.layer("cuts and options"):
        return _at(costs, c, starts, limit_bytes)


def reordered(costs: CandidateCosts, fitted: Fitted) -> Fitted | None:
    """The same cuts and options with the other axis outermost, which holds the same bytes."""
    other = fitted.candidate.reordered()
    if other is None:
        return None
    model = step_of(costs, other, fitted.starts, fitted.picks)
    return replace(fitted, candidate=other, model=model)


def polished(costs: CandidateCosts, fitted: Fitted, limit_bytes: float, longest: int = 1) -> Fitted:
    """The best reached by moving cuts by one unit again and again, each time to the first that is
    faster. longest: run of neighbouring cuts that moves together."""
    with costs.memo.clock.layer("cuts and options"):
        return _polished(costs, fitted, limit_bytes, longest)


def _polished(costs: CandidateCosts, fitted: Fitted, limit_bytes: float, longest: int) -> Fitted:
    tried = {fitted.starts}
    moving = costs.problem.pins.cuts is None and fitted.candidate.num_stages > 1
    budget = costs.problem.budget
    most = _most_polished(budget, fitted) if longest == 1 else budget.max_runs
    while moving:
        moving = False
        for starts in _neighbours(fitted.starts, len(fitted.picks), longest):
            if starts in tried or len(tried) > most:
                continue
            tried.add(starts)
            best_us = fitted.timeline.step_us
            other = _at(costs, fitted.candidate, starts, limit_bytes, best_us)
            if other is not None and other.beats(best_us):
                fitted, moving = other, True
                break
    return fitted


def _most_polished(budget: SearchBudget, fitted: Fitted) -> int:
    """Return how many cuts may be tried, each of which simulates a step."""
    passes = 2 * fitted.candidate.num_microbatches * len(fitted.picks)
    return int(min(budget.max_polished - 1, budget.max_polished_passes / passes))


def _neighbours(starts: tuple[int, ...], count: int, longest: int = 1) -> Iterator[tuple[int, ...]]:
    """Yield cuts of which a run was moved by one unit, short runs first. No stage is empty."""
    for length in range(1, longest + 1):
        for first in range(1, len(starts) - length + 1):
            stop = first + length
            for by in (-1, 1):
                run = (start + by for start in starts[first:stop])
                moved = (*starts[:first], *run, *starts[stop:])
                if all(a < b for a, b in pairwise((*moved, count))):
                    yield moved


def _at(
    costs: CandidateCosts,
    c: Candidate,
    starts: tuple[int, ...],
    limit_bytes: float,
    best_us: float = INF,
) -> Fitted | None:
    """Fitted to these cuts, where the step may be below the best."""
    cutters = cutters_of(costs, c, limit_bytes)
    picked = dict.fromkeys(placed for cutter in cutters for placed in cutter.picked(starts))
    fitting = _fitting(costs, c, limit_bytes, iter(picked), best_us)
    return fastest_of(_fitted(costs, c, *one) for one in fitting)


def fits(costs: CandidateCosts, c: Candidate, limit_bytes: float) -> bool:
    """Return whether cuts and options are found that fit; a bound answers first where it can."""
    if not CandidateBounds(costs).may_fit(c, limit_bytes):
        return False
    return next(_found(costs, c, limit_bytes), None) is not None


def peak_under(costs: CandidateCosts, c: Candidate, limit_bytes: float) -> Peak:
    """Return the peak of the fullest rank under a limit that `fits` says the candidate keeps."""
    _, model, _ = next(_found(costs, c, limit_bytes))
    return _fullest(costs, c, model)


def never_fits(costs: CandidateCosts, c: Candidate) -> bool:
    """Return whether `fit` finding nothing proves that there is nothing: 1F1B and GPipe, short
    models."""
    return c.schedule in PLAIN and is_exact(costs.units_of(c).options, costs.problem.budget)


def found_to_fit(costs: CandidateCosts, c: Candidate, limit_bytes: float) -> Found:
    """Return cuts and options that fit, one of each way to cut."""
    return tuple((placed, peak) for placed, _, peak in _found(costs, c, limit_bytes))


def _found(
    costs: CandidateCosts, c: Candidate, limit_bytes: float
) -> Iterator[tuple[Placed, StepModel, float]]:
    """The first that fits of every way to cut; of the last resort where none does."""
    cutters = cutters_of(costs, c, limit_bytes)
    seen: set[Placed] = set()
    for options in (way for cutter in cutters for way in cutter.ways()):
        found = next(_fitting(costs, c, limit_bytes, options), None)
        if found is not None and found[0] not in seen:
            seen.add(found[0])
            yield found
    if not seen:
        last = next(_fitting(costs, c, limit_bytes, cutters[0].last_resort()), None)
        yield from () if last is None else (last,)


def _fitting(
    costs: CandidateCosts,
    c: Candidate,
    limit_bytes: float,
    options: Iterator[Placed],
    best_us: float = INF,
) -> Iterator[tuple[Placed, StepModel, float]]:
    for placed in options:
        model = step_of(costs, c, *placed)
        if best_us < INF and _least_us(costs, c, model) >= best_us:
            continue
        if costs.problem.offloads and not _host_holds(costs, c, model):
            continue
        peak = _fullest(costs, c, model).total_bytes
        if peak <= limit_bytes:
            yield placed, model, peak


def _fullest(costs: CandidateCosts, c: Candidate, model: StepModel) -> Peak:
    given = c.mesh, costs.precision(c), costs.problem.context_bytes(c)
    peaks = model_peaks(model, *given, computing=costs.memo.schedules.computing(c.listing))
    return max(peaks, key=lambda peak: peak.total_bytes)


def _host_holds(costs: CandidateCosts, c: Candidate, model: StepModel) -> bool:
    most, held = usable_host_bytes(costs.problem.cluster), costs.memo.schedules.held(c.listing)
    return all(host_bytes(model, rank, held) <= most for rank in range(len(model.schedule)))


def step_of(costs: CandidateCosts, c: Candidate, starts: Sequence[int], picks: Picks) -> StepModel:
    """The step under cuts and options."""
    layout = costs.layout(c)
    stages = stages_of(starts, len(layout.instances))
    instances = placed_under(layout.instances, stages, picks)
    buckets = on_stages(layout.buckets, instances)
    silent = silent_stages(instances, buckets, c.pp * c.chunks)
    schedule = costs.memo.schedules.schedule(c.listing, silent)
    ranks = stage_ranks(c.schedule, c.pp, c.chunks)
    table = costs.units_of(c).table
    return table.step(instances, buckets, ranks, schedule, c.num_microbatches)


def least_peak_bytes(costs: CandidateCosts, c: Candidate) -> float:
    """The smallest limit that cuts and options of the candidate are found for, to 1%."""
    return _least(lambda limit_bytes: fits(costs, c, limit_bytes))


def least_bound_bytes(costs: CandidateCosts, c: Candidate) -> float:
    """A lower bound on `least_peak_bytes`, which costs next to nothing."""
    return _least(lambda limit_bytes: CandidateBounds(costs).may_fit(c, limit_bytes))


def _least(fits: Callable[[float], bool]) -> float:
    """The smallest limit that fits, to 1%; of the same steps whatever fits, so that equals tie."""
    low, high = 0.0, 1e15
    while high > 1.01 * max(low, 1.0):
        middle = (max(low, 1.0) * high) ** 0.5
        if fits(middle):
            high = middle
        else:
            low = middle
    return high


def fixed_pins(fitted: Fitted, pins: Pins) -> Pins:
    """The pins that ask for exactly this candidate, its options aside."""
    c = fitted.candidate
    cuts = ",".join(map(str, fitted.starts[1:])) or None
    return replace(
        pins,
        pp=c.pp,
        dp=c.dp,
        tp=c.tp,
        rep=c.rep,
        cp=c.cp,
        micro_batch=c.micro_batch,
        zero=c.zero,
        recompute=c.recompute,
        schedule=c.schedule,
        outer=c.outer,
        chunks=c.chunks if c.schedule == "interleaved" else None,
        cuts=cuts,
    )
