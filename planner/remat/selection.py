"""The option of every unit of a stage: the fastest choice that fits its rank's memory.

With K bytes kept of a micro-batch and k_u of them up to unit u, `held` micro-batches in flight and
p the bytes that a function has alive, a choice fits when for every unit

    (held - 1) K + k_before + a_before + entry + p_forward <= limit
    (held - 1) K + k_u + a_u + a_before + p_backward <= limit

where a_u is what the unit offloads and a_before what those right before it do (stage_memory.py).
The last unit of a stage offloads nothing, as its backward comes first. Stages of few units, or
where units offload of few choices, are solved exactly: partial choices are labels (us, K so far,
what the last units offload, the peak so far), and one that another beats in all of them is dropped.
Longer ones, which are repetitions of few kinds, give up bytes along the hulls of their options
(options.py), the cheapest first, until they fit, and take back what they need not give up: the
choice is within one step of one unit of the linear relaxation, where memory moves as it does there.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from operator import le

from ..budget import BUDGET, SearchBudget
from ..simulate.step_model import IN_TRANSIT, Unit
from .options import Slope, UnitOptions, fastest, slopes

INF = float("inf")
ROUNDING = 1e-9

Times = Sequence[Sequence[float]]  # us of a micro-batch, by unit and option
Picks = tuple[int, ...]
Points = Sequence[Sequence[tuple[float, float]]]  # us and bytes, by unit and option
Fits = Callable[[Picks], bool]


def select_options(
    units: Sequence[UnitOptions],
    times: Times,
    held: int,
    limit_bytes: float,
    stays: bool = False,
    budget: SearchBudget = BUDGET,
) -> Picks | None:
    """The option of each unit; None where no choice fits (or, of a long stage, none is found).

    held: micro-batches in flight. limit_bytes: of the rank, its storage taken off. stays: nothing
    is offloaded.
    """
    times = _staying_times(units, times, stays)
    if not _may_fit(units, times, held, limit_bytes):
        return None
    if is_exact(units, budget):
        return _exact(units, times, held, limit_bytes)
    return _along_hulls(units, times, held, limit_bytes, budget)


def has_options(
    units: Sequence[UnitOptions],
    times: Times,
    held: int,
    limit_bytes: float,
    stays: bool = False,
    budget: SearchBudget = BUDGET,
) -> bool:
    """Return whether `select_options` finds a choice, in a small part of its time."""
    times = _staying_times(units, times, stays)
    if not _may_fit(units, times, held, limit_bytes):
        return False
    if is_exact(units, budget):
        return _exact(units, times, held, limit_bytes) is not None
    points, fits = _kept_points(units, times), _peak_within(units, held, limit_bytes)
    if _few(points, budget):
        return select_along(points, fits, budget) is not None
    return _Moving.of(points).leanest(fits) is not None


def _staying_times(units: Sequence[UnitOptions], times: Times, stays: bool) -> Times:
    """Return times without options that offload: of the last unit, or of all that stay."""
    last = len(units) - 1
    return [
        staying(options, us) if stays or k == last else us
        for k, (options, us) in enumerate(zip(units, times, strict=True))
    ]


def is_exact(units: Sequence[UnitOptions], budget: SearchBudget = BUDGET) -> bool:
    """Return whether a stage of these units is solved exactly. Where units offload, few choices
    beat others in all that labels say."""
    distinct = {id(options): options for options in units}  # to hash them takes longer
    if any(unit.work.away_bytes for options in distinct.values() for unit in options):
        return prod(map(len, units)) <= budget.exact_choices
    return len(units) <= budget.exact_units


def staying(options: UnitOptions, us: Sequence[float]) -> list[float]:
    """Times of a unit by option, inf for those that offload."""
    return [INF if unit.work.away_bytes else t for t, unit in zip(us, options, strict=True)]


def peak_bytes(units: Sequence[UnitOptions], picks: Picks, held: int) -> float:
    """The peak of a stage, its storage aside."""
    stage = EMPTY
    for options, pick in zip(units, picks, strict=True):
        stage = _after(options[pick], *stage)
    kept, _, moment = stage
    return (held - 1) * kept + moment


Held = tuple[float, tuple[float, ...], float]
EMPTY: Held = (0.0, (0.0,) * IN_TRANSIT, 0.0)


def _after(unit: Unit, kept: float, near: tuple[float, ...], moment: float) -> Held:
    """(K so far, what the last units offload, peak of the micro-batch itself) with one
    more unit."""
    before, (entry, ahead, keeps, away, behind) = sum(near), unit.work.sizes
    forward = kept + before + entry + ahead
    kept += keeps
    backward = kept + before + away + behind
    return kept, (*near[1:], away), max(moment, forward, backward)


@dataclass(frozen=True, order=True)
class _Label:
    us: float
    kept: float
    near: tuple[float, ...]
    moment: float
    picks: Picks

    def beats(self, other: "_Label") -> bool:  # us: by their order
        less = self.kept <= other.kept and self.moment <= other.moment
        return less and all(map(le, self.near, other.near))


def _exact(
    units: Sequence[UnitOptions], times: Times, held: int, limit_bytes: float
) -> Picks | None:
    labels = [_Label(0.0, *EMPTY, ())]
    for options, us in zip(units, times, strict=True):
        grown = []
        for label in labels:
            for pick, unit in enumerate(options):
                kept, near, moment = _after(unit, label.kept, label.near, label.moment)
                if us[pick] < INF and (held - 1) * kept + moment <= limit_bytes:
                    picks = (*label.picks, pick)
                    grown.append(_Label(label.us + us[pick], kept, near, moment, picks))
        labels = _undominated(grown)
    return labels[0].picks if labels else None


def _undominated(labels: list[_Label]) -> list[_Label]:
    found: list[_Label] = []
    for label in sorted(labels):
        if not any(other.beats(label) for other in found):
            found.append(label)
    return found


def _along_hulls(
    units: Sequence[UnitOptions],
    times: Times,
    held: int,
    limit_bytes: float,
    budget: SearchBudget = BUDGET,
) -> Picks | None:
    points = _kept_points(units, times)
    return select_along(points, _peak_within(units, held, limit_bytes), budget)


def _may_fit(units: Sequence[UnitOptions], times: Times, held: int, limit_bytes: float) -> bool:
    """Return whether the least that a stage may hold is within a limit."""
    stage = Leanest()
    for options, us in zip(units, times, strict=True):
        allowed = [unit.work.sizes for unit, t in zip(options, us, strict=True) if t < INF]
        if not allowed:
            return False
        stage.add(leanest_sizes(allowed))
    return stage.may_fit(held, limit_bytes)


Sizes = tuple[float, float, float, float, float]


def leanest_sizes(allowed: Iterable[Sizes]) -> Sizes:
    """Return what a unit keeps at least, alive in forward and backward beside what those before it
    keep: under the option that keeps the least, and at least."""
    each = [
        (keeps, entry + ahead, keeps + away + behind)
        for entry, ahead, keeps, away, behind in allowed
    ]
    leanest = min(each)
    return *leanest, min(forward for _, forward, _ in each), min(back for *_, back in each)


@dataclass
class Leanest:
    """What a stage holds of a micro-batch as units are added. kept: under the leanest option of
    each. moment: its peak under these, where none offloads; least: at least, under any."""

    kept: float = 0.0
    moment: float = 0.0
    least: float = 0.0

    def add(self, sizes: Sizes) -> None:
        """Add a unit of which `leanest_sizes` is known."""
        keeps, forward, backward, least_forward, least_backward = sizes
        self.moment = max(self.moment, self.kept + forward, self.kept + backward)
        self.least = max(self.least, self.kept + least_forward, self.kept + least_backward)
        self.kept += keeps

    def fits(self, held: int, limit_bytes: float) -> bool:
        """Return whether the leanest options are surely within a limit, as no unit offloads."""
        return (held - 1) * self.kept + self.moment <= (1 - ROUNDING) * limit_bytes

    def may_fit(self, held: int, limit_bytes: float) -> bool:
        """Return whether some options may be within a limit."""
        return (held - 1) * self.kept + self.least <= (1 + ROUNDING) * limit_bytes


def _kept_points(units: Sequence[UnitOptions], times: Times) -> Points:
    return [
        [(t, u.work.kept_bytes if t < INF else INF) for t, u in zip(us, options, strict=True)]
        for us, options in zip(times, units, strict=True)
    ]


def _peak_within(units: Sequence[UnitOptions], held: int, limit_bytes: float) -> Fits:
    """Return whether the peak of picks is within a limit, as a function of them."""
    sizes = [[unit.work.sizes for unit in options] for options in units]
    if any(away for options in sizes for *_, away, _ in options):
        return lambda picks: peak_bytes(units, picks, held) <= limit_bytes

    def fits(picks: Picks) -> bool:
        kept = moment = 0.0
        for options, pick in zip(sizes, picks, strict=True):
            entry, ahead, keeps, _, behind = options[pick]
            moment = max(moment, kept + entry + ahead, (kept := kept + keeps) + behind)
        return (held - 1) * kept + moment <= limit_bytes

    return fits


def select_along(points: Points, fits: Fits, budget: SearchBudget = BUDGET) -> Picks | None:
    """The option of each unit, bytes given up where they cost least until they fit.

    points: by unit and option, us and the bytes that it holds at the peak. Few
    combinations are all tried: what functions have alive moves as much there as what units hold.
    """
    if _few(points, budget):
        us = [[t for t, _ in options] for options in points]
        every = product(*(range(len(options)) for options in points))
        timed = [(sum(t[k] for t, k in zip(us, p, strict=True)), p) for p in every]
        return next((p for t, p in sorted(timed) if t < INF and fits(p)), None)
    moving = _Moving.of(points)
    leanest = moving.leanest(fits)
    if leanest is None or leanest < len(moving.moves):
        return None if leanest is None else moving.after(leanest)
    low, high = 0, leanest
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(moving.after(middle)) else (middle + 1, high)
    return _taken_back(moving.after(low), moving.moves[:low], moving.start, fits)


def _few(points: Points, budget: SearchBudget) -> bool:
    return prod(map(len, points)) <= budget.few_choices


Move = tuple[float, int, int]  # us a byte, unit, option it goes to


@dataclass(frozen=True)
class _Moving:
    """The fastest options, and moves from them to leaner ones, the cheapest first."""

    start: Picks
    moves: list[Move]

    @classmethod
    def of(cls, points: Points) -> "_Moving":
        return cls(tuple(map(fastest, points)), _moves(points))

    def after(self, count: int) -> Picks:
        """Return the options after as many moves."""
        picks = list(self.start)
        for _, index, option in self.moves[:count]:
            picks[index] = option
        return tuple(picks)

    def leanest(self, fits: Fits) -> int | None:
        """Return the most moves after which units fit, None where they never do: the leanest may
        have most alive in their functions."""
        every = range(len(self.moves), -1, -1)
        return next((count for count in every if fits(self.after(count))), None)


def _moves(points: Points) -> list[Move]:
    """Cheapest first, among equals the earliest unit."""
    known: dict[tuple, list[Slope]] = {}
    found = []
    for index, options in enumerate(points):
        if (key := tuple(options)) not in known:
            known[key] = slopes(options)
        found += [(s.us_per_byte, index, s.option) for s in known[key]]
    return sorted(found, key=lambda move: (move[0], move[1]))


def _taken_back(
    picks: Picks, moves: Sequence[Move], start: Picks, fits: Callable[[Picks], bool]
) -> Picks:
    """Undo moves, dearest first, where the rest fits without them; try each kind of move once."""
    tried: set[tuple[float, int]] = set()
    before = list(start)
    undo: list[tuple[float, int, int, int]] = []
    for slope, index, option in moves:
        undo.append((slope, index, option, before[index]))
        before[index] = option
    for slope, index, option, old in reversed(undo):
        if (slope, option) in tried or picks[index] != option:
            continue
        tried.add((slope, option))
        less = (*picks[:index], old, *picks[index + 1 :])
        if fits(less):
            picks = less
            tried.discard((slope, option))
    return picks
