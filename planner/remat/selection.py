"""The level of every unit of a stage: the fastest choice that fits its rank's memory.

With K bytes kept of a micro-batch and k_u of them up to unit u, `held` micro-batches in flight and
p the bytes that a function has alive, a choice fits when for every unit

    (held - 1) K + k_before + a_before + entry + p_forward <= room
    (held - 1) K + k_u + a_u + a_before + p_backward <= room

where a_u is what the unit offloads and a_before what those right before it do (stage_memory.py).
The last unit of a stage offloads nothing, as its backward comes first. Stages of few
units, or where units offload of few choices, are solved exactly: partial choices
are labels (us, K so far, what the last units offload, the peak so far), and one that
another beats in all of them is dropped. Longer ones, which are repetitions of few kinds, give up
bytes along the hulls of their menus (options.py), the cheapest first, until they fit, and take back
what they need not give up: the choice is within one step of one unit of the linear relaxation,
where memory moves as it does there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from operator import le

from ..budget import BUDGET, SearchBudget
from ..simulate.step_model import IN_TRANSIT
from .options import Menu, Slope, fastest, slopes

INF = float("inf")

Times = Sequence[Sequence[float]]  # us of a micro-batch, by unit and level
Picks = tuple[int, ...]


def select_options(
    menus: Sequence[Menu],
    times: Times,
    held: int,
    room_bytes: float,
    stays: bool = False,
    budget: SearchBudget = BUDGET,
) -> Picks | None:
    """The level of each unit; None where no choice fits (or, of a long stage, none is found).

    stays: nothing is offloaded.
    """
    ends = len(menus) - 1
    times = [
        staying(menu, us) if stays or k == ends else us
        for k, (menu, us) in enumerate(zip(menus, times, strict=True))
    ]
    if is_exact(menus, budget):
        return _exact(menus, times, held, room_bytes)
    return _along_hulls(menus, times, held, room_bytes, budget)


def is_exact(menus: Sequence[Menu], budget: SearchBudget = BUDGET) -> bool:
    """Return whether a stage of these units is solved exactly. Where units offload, few choices
    beat others in all that labels say."""
    if any(unit.work.away_bytes for menu in set(menus) for unit in menu):
        return prod(map(len, menus)) <= budget.exact_choices
    return len(menus) <= budget.exact_units


def staying(menu: Menu, us: Sequence[float]) -> list[float]:
    """Times of a unit by level, inf for those that offload."""
    return [INF if unit.work.away_bytes else t for t, unit in zip(us, menu, strict=True)]


def peak_bytes(menus: Sequence[Menu], picks: Picks, held: int) -> float:
    """The peak of a stage, its storage aside."""
    stage = EMPTY
    for menu, level in zip(menus, picks, strict=True):
        stage = _after(menu, level, *stage)
    kept, _, moment = stage
    return (held - 1) * kept + moment


Held = tuple[float, tuple[float, ...], float]
EMPTY: Held = (0.0, (0.0,) * IN_TRANSIT, 0.0)


def _after(menu: Menu, level: int, kept: float, near: tuple[float, ...], moment: float) -> Held:
    """(K so far, what the last units offload, peak of the micro-batch itself) with one
    more unit."""
    work, before = menu[level].work, sum(near)
    forward = kept + before + work.entry_bytes + work.forward.peak_bytes
    kept += work.kept_bytes
    backward = kept + before + work.away_bytes + work.backward.peak_bytes
    return kept, (*near[1:], work.away_bytes), max(moment, forward, backward)


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


def _exact(menus: Sequence[Menu], times: Times, held: int, room: float) -> Picks | None:
    labels = [_Label(0.0, *EMPTY, ())]
    for menu, us in zip(menus, times, strict=True):
        grown = []
        for label in labels:
            for level in range(len(menu)):
                kept, near, moment = _after(menu, level, label.kept, label.near, label.moment)
                if us[level] < INF and (held - 1) * kept + moment <= room:
                    picks = (*label.picks, level)
                    grown.append(_Label(label.us + us[level], kept, near, moment, picks))
        labels = _undominated(grown)
    return labels[0].picks if labels else None


def _undominated(labels: list[_Label]) -> list[_Label]:
    found: list[_Label] = []
    for label in sorted(labels):
        if not any(other.beats(label) for other in found):
            found.append(label)
    return found


def _along_hulls(
    menus: Sequence[Menu],
    times: Times,
    held: int,
    room: float,
    budget: SearchBudget = BUDGET,
) -> Picks | None:
    points = [
        [(t, u.work.kept_bytes if t < INF else INF) for t, u in zip(us, menu, strict=True)]
        for us, menu in zip(times, menus, strict=True)
    ]
    return select_along(points, lambda picks: peak_bytes(menus, picks, held) <= room, budget)


def select_along(
    points: Sequence[Sequence[tuple[float, float]]],
    fits: Callable[[Picks], bool],
    budget: SearchBudget = BUDGET,
) -> Picks | None:
    """The level of each unit, bytes given up where they cost least until they fit.

    points: of each unit by level its us, and the bytes that it holds at the peak. Few
    combinations are all tried: what functions have alive moves as much there as what units hold.
    """
    if prod(map(len, points)) <= budget.few_choices:
        us = [[t for t, _ in levels] for levels in points]
        every = product(*(range(len(levels)) for levels in points))
        timed = [(sum(t[k] for t, k in zip(us, p, strict=True)), p) for p in every]
        return next((p for t, p in sorted(timed) if t < INF and fits(p)), None)
    start = tuple(map(fastest, points))
    moves = _moves(points)

    def after(count: int) -> Picks:
        picks = list(start)
        for _, index, level in moves[:count]:
            picks[index] = level
        return tuple(picks)

    low, high = 0, len(moves)
    if not fits(after(high)):  # the leanest may have most alive in its functions
        low = next((k for k in range(high, -1, -1) if fits(after(k))), -1)
        return None if low < 0 else after(low)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(after(middle)) else (middle + 1, high)
    return _taken_back(after(low), moves[:low], start, fits)


Move = tuple[float, int, int]  # us a byte, unit, level it goes to


def _moves(points: Sequence[Sequence[tuple[float, float]]]) -> list[Move]:
    """Cheapest first, among equals the earliest unit."""
    known: dict[tuple, list[Slope]] = {}
    found = []
    for index, menu in enumerate(points):
        if (key := tuple(menu)) not in known:
            known[key] = slopes(menu)
        found += [(s.us_per_byte, index, s.level) for s in known[key]]
    return sorted(found, key=lambda move: (move[0], move[1]))


def _taken_back(
    picks: Picks, moves: Sequence[Move], start: Picks, fits: Callable[[Picks], bool]
) -> Picks:
    """Without the moves, dearest first, that the rest fits without: one try a kind of move."""
    tried: set[tuple[float, int]] = set()
    before = list(start)
    undo: list[tuple[float, int, int, int]] = []
    for slope, index, level in moves:
        undo.append((slope, index, level, before[index]))
        before[index] = level
    for slope, index, level, old in reversed(undo):
        if (slope, level) in tried or picks[index] != level:
            continue
        tried.add((slope, level))
        less = (*picks[:index], old, *picks[index + 1 :])
        if fits(less):
            picks = less
            tried.discard((slope, level))
    return picks
