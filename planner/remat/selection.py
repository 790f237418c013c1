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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from operator import le

from ..budget import BUDGET, SearchBudget
from ..simulate.step_model import IN_TRANSIT, Unit
from .options import Slope, UnitOptions, fastest, slopes

INF = float("inf")

Times = Sequence[Sequence[float]]  # us of a micro-batch, by unit and option
Picks = tuple[int, ...]


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
    last = len(units) - 1
    times = [
        staying(options, us) if stays or k == last else us
        for k, (options, us) in enumerate(zip(units, times, strict=True))
    ]
    if is_exact(units, budget):
        return _exact(units, times, held, limit_bytes)
    return _along_hulls(units, times, held, limit_bytes, budget)


def is_exact(units: Sequence[UnitOptions], budget: SearchBudget = BUDGET) -> bool:
    """Return whether a stage of these units is solved exactly. Where units offload, few choices
    beat others in all that labels say."""
    if any(unit.work.away_bytes for options in set(units) for unit in options):
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
    points = [
        [(t, u.work.kept_bytes if t < INF else INF) for t, u in zip(us, options, strict=True)]
        for us, options in zip(times, units, strict=True)
    ]
    return select_along(points, lambda p: peak_bytes(units, p, held) <= limit_bytes, budget)


def select_along(
    points: Sequence[Sequence[tuple[float, float]]],
    fits: Callable[[Picks], bool],
    budget: SearchBudget = BUDGET,
) -> Picks | None:
    """The option of each unit, bytes given up where they cost least until they fit.

    points: by unit and option, us and the bytes that it holds at the peak. Few
    combinations are all tried: what functions have alive moves as much there as what units hold.
    """
    if prod(map(len, points)) <= budget.few_choices:
        us = [[t for t, _ in options] for options in points]
        every = product(*(range(len(options)) for options in points))
        timed = [(sum(t[k] for t, k in zip(us, p, strict=True)), p) for p in every]
        return next((p for t, p in sorted(timed) if t < INF and fits(p)), None)
    start = tuple(map(fastest, points))
    moves = _moves(points)

    def after(count: int) -> Picks:
        picks = list(start)
        for _, index, option in moves[:count]:
            picks[index] = option
        return tuple(picks)

    low, high = 0, len(moves)
    if not fits(after(high)):  # the leanest may have most alive in its functions
        low = next((k for k in range(high, -1, -1) if fits(after(k))), -1)
        return None if low < 0 else after(low)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(after(middle)) else (middle + 1, high)
    return _taken_back(after(low), moves[:low], start, fits)


Move = tuple[float, int, int]  # us a byte, unit, option it goes to


def _moves(points: Sequence[Sequence[tuple[float, float]]]) -> list[Move]:
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
