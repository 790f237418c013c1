"""Cuts and levels of a candidate within memory, and its simulated step.

1F1B and GPipe: cuts whose slowest stage is the fastest there is, when every stage may free the
bytes that are too many where that costs least (levels.py), then the levels of each stage
(choose.py). Memory that the cuts do not foresee is met by cutting again for a little less of it,
and last by stages filled in order with all that any choice fits, which finds cuts wherever there
are some, choices being exact. Other schedules hold several stages a rank or
two kinds of memory; their units give up bytes at one price throughout, the lowest that fits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from .choose import EXACT_UNITS, Picks, choose
from .cuts import Room, balanced, stages_of
from .evaluate import Evaluator, Parts, held_of, with_levels
from .layout import with_stages
from .levels import Saved, priced_levels
from .memory import Filling, model_peaks
from .passes import Pace
from .pins import Pins
from .schedules import PLAIN, SPLIT, make_schedule, most_held, stage_ranks
from .simulator import Timeline, simulate
from .space import Candidate
from .step import StepModel

INF = float("inf")
# Shares of the memory that cuts are made for, one after another.
SHARES = (1.0, 0.995, 0.98, 0.95, 0.9)


@dataclass(frozen=True)
class Fitted:
    """A candidate in stages that fit: the first unit of each, the level of each unit, what that
    keeps, its step, and its peak."""

    candidate: Candidate
    starts: tuple[int, ...]
    picks: Picks
    saved: tuple[Saved, ...]
    model: StepModel
    timeline: Timeline
    peak_bytes: float


Placed = tuple[tuple[int, ...], Picks]  # first unit of every stage, level of every unit


def fit(evaluator: Evaluator, c: Candidate, limit_bytes: float) -> Fitted | None:
    """Cut and simulate; None where nothing is found that fits the memory."""
    found = _first(evaluator, c, limit_bytes)
    if found is None:
        return None
    (starts, picks), model, peak = found
    levels = evaluator.levels(c)
    pieces = [i.piece for i in evaluator.layout(c).instances]
    saved = tuple(levels[piece][k][0] for piece, k in zip(pieces, picks, strict=True))
    return Fitted(c, starts, picks, saved, model, simulate(model), peak)


def fits(evaluator: Evaluator, c: Candidate, limit_bytes: float) -> bool:
    """Whether cuts and levels are found that fit."""
    return _first(evaluator, c, limit_bytes) is not None


def never_fits(evaluator: Evaluator, c: Candidate) -> bool:
    """Whether `fit` finding nothing proves that there is nothing: 1F1B and GPipe, short models."""
    return c.schedule in PLAIN and len(evaluator.parts_of(c).menus) <= EXACT_UNITS


def _first(
    evaluator: Evaluator, c: Candidate, limit_bytes: float
) -> tuple[Placed, StepModel, float] | None:
    for placed in _Cutter(evaluator, c, limit_bytes).options():
        model = step_of(evaluator, c, *placed)
        peaks = model_peaks(model, c.dp, evaluator.precision, evaluator.context_bytes(c))
        peak = max(p.total_bytes for p in peaks)
        if peak <= limit_bytes:
            return placed, model, peak
    return None


def step_of(evaluator: Evaluator, c: Candidate, starts: Sequence[int], picks: Picks) -> StepModel:
    """The step under cuts and levels."""
    layout = evaluator.layout(c)
    picked = with_levels(layout.instances, picks)
    stages = stages_of(starts, len(picked))
    instances, buckets = with_stages(picked, layout.buckets, stages)
    schedule = make_schedule(c.schedule, c.pp, c.num_microbatches, c.chunks)
    ranks = stage_ranks(c.schedule, c.pp, c.chunks)
    table = evaluator.parts_of(c).table
    return table.step(instances, buckets, ranks, schedule, c.num_microbatches)


def least_peak_bytes(evaluator: Evaluator, c: Candidate) -> float:
    """The smallest limit that cuts and levels of the candidate are found for, to 1%."""
    low, high = 0.0, 1e15
    while high > 1.01 * max(low, 1.0):
        middle = (max(low, 1.0) * high) ** 0.5
        if fits(evaluator, c, middle):
            high = middle
        else:
            low = middle
    return high


class _Cutter:
    """Cuts and levels to try for one candidate, the best first."""

    def __init__(self, evaluator: Evaluator, c: Candidate, limit_bytes: float) -> None:
        self.evaluator, self.c, self.limit = evaluator, c, limit_bytes
        self.parts: Parts = evaluator.parts_of(c)
        self.context = evaluator.context_bytes(c)
        self.pinned = evaluator.pins.cuts

    def options(self) -> Iterator[Placed]:
        if self.c.schedule in PLAIN:
            yield from self._chosen()
            yield from self._tightest()
        else:
            for picks in priced_levels(self.parts.at_plain):
                for starts in self._shared_cuts(picks):
                    yield starts, picks

    def _chosen(self) -> Iterator[Placed]:
        times = [min(map(sum, levels)) for levels in self.parts.full]
        seen = set()
        for share in SHARES:
            limit = share * self.limit
            room = self.evaluator.room(self.c, self.parts, self.parts.at_full, limit)
            starts = self._cut(times, room)
            picks = self._picks(starts, limit) if starts else None
            if starts and picks and (starts, picks) not in seen:
                seen.add((starts, picks))
                yield starts, picks

    def _tightest(self) -> Iterator[Placed]:
        times = [min(map(sum, levels)) for levels in self.parts.full]
        starts = self._cut(times, self._exact_room())
        picks = self._picks(starts, self.limit) if starts else None
        if starts and picks:
            yield starts, picks

    def _cut(self, times: Sequence[float], room: Room | None) -> tuple[int, ...] | None:
        if self.pinned is not None:
            return (0, *(int(n) for n in self.pinned.split(",")))
        found = balanced(times, self.c.num_stages, room)
        return None if found is None else tuple(found)

    def _picks(self, starts: tuple[int, ...], limit: float) -> Picks | None:
        """The levels of all stages; None where one of them does not fit."""
        picks: Picks = ()
        stops = (*starts[1:], len(self.parts.menus))
        for stage, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            found = self._stage_picks(start, stop, stage, limit)
            if found is None:
                return None
            picks += found
        return picks

    def _stage_picks(self, start: int, stop: int, stage: int, limit: float) -> Picks | None:
        menus = self.parts.menus[start:stop]
        times = [[f + b for f, b in levels] for levels in self.parts.full[start:stop]]
        held = sum(menu[0].owned_bytes for menu in menus)
        largest = max(menu[0].bucket_bytes for menu in menus)
        room = limit - self.context - self.evaluator.storage_bytes(self.c, held, largest)
        return choose(menus, times, held_of(self.c, stage), room)

    def _exact_room(self) -> Room:
        """Whether some levels fit."""

        def room(stage: int) -> Callable[[int], float]:
            start: list[int] = []

            def longer(index: int) -> float:
                start.append(index)
                found = self._stage_picks(start[0], index + 1, stage, self.limit)
                return INF if found is None else 0.0

            return longer

        return room

    def _shared_cuts(self, picks: Picks) -> Iterator[tuple[int, ...]]:
        """Of stages that share a rank; the second for its share of memory, a guess, as the stages
        of a rank are not fullest at once."""
        times = _times(self.parts.plain, picks)
        for room in (lambda: None, lambda: self._share(picks)):
            starts = self._cut(times, room())
            if starts:
                yield starts
            if self.pinned is not None:
                return

    def _share(self, picks: Picks) -> Room:
        """Whether units still fit a stage within its share of a rank."""
        c = self.c
        share = (self.limit - self.context) / c.chunks
        schedule = make_schedule(c.schedule, c.pp, c.num_microbatches, c.chunks)
        ranks = stage_ranks(c.schedule, c.pp, c.chunks)

        def room(stage: int) -> Callable[[int], float]:
            filled = Filling(c.schedule in SPLIT)
            counts = most_held(schedule[ranks[stage]], stage)

            def longer(index: int) -> float:
                filled.add(self.parts.menus[index][picks[index]])
                stored = filled.bucket_bytes, filled.largest_bytes
                size = self.evaluator.storage_bytes(c, *stored) + filled.peak(*counts).total_bytes
                return 0.0 if size <= share else INF

            return longer

        return room


def _times(pace: Pace, picks: Picks) -> list[float]:
    return [sum(levels[k]) for levels, k in zip(pace, picks, strict=True)]


def fixed_pins(fitted: Fitted, pins: Pins) -> Pins:
    """The pins that ask for exactly this candidate, its levels aside."""
    c = fitted.candidate
    cuts = ",".join(map(str, fitted.starts[1:])) or None
    return replace(
        pins,
        pp=c.pp,
        dp=c.dp,
        tp=c.tp,
        micro_batch=c.micro_batch,
        zero=c.zero,
        recompute=c.recompute,
        schedule=c.schedule,
        chunks=c.chunks if c.schedule == "interleaved" else None,
        cuts=cuts,
    )
