"""Times of one micro-batch through units that may choose their level, beside their collectives.

Of a unit's levels only compute differs; gathers and reductions belong to its buckets.
"""

from collections.abc import Sequence

from ..remat.options import Menu
from ..simulate.simulator import OVERLAP_PRICE
from ..simulate.step_model import Unit

# By unit and level: (forward, backward) of a micro-batch, in us.
OptionTimes = list[tuple[tuple[float, float], ...]]


def compute_times(menus: Sequence[Menu], kinds: Sequence[int], reduces: bool) -> OptionTimes:
    """Return the times of units without collectives, but for what compute waits for.

    kinds: a number for each unit, the same for equal menus. reduces: gradients are reduced after
    every micro-batch.
    """
    known: dict[tuple, tuple[tuple[float, float], ...]] = {}
    return [
        _levels(known, (kind,), menu, reduces, 0.0, (0.0, 0.0))
        for kind, menu in zip(kinds, menus, strict=True)
    ]


def overlapped_times(menus: Sequence[Menu], kinds: Sequence[int], reduces: bool) -> OptionTimes:
    """Return the times of units beside their collectives.

    Beside a unit run the gather of the next one and, in backward, before it the reduction of the
    one just done. The next unit waits for its gather.
    """
    known: dict[tuple, tuple[tuple[float, float], ...]] = {}
    found = []
    last = len(menus) - 1
    for index, menu in enumerate(menus):
        after = menus[index + 1][0] if index < last else None
        ahead = after.gather_us if after else 0.0
        gather = menus[index - 1][0].gather_us if index else 0.0
        behind = (gather, after.reduce_us if after and reduces else 0.0)
        found.append(_levels(known, (kinds[index], ahead, behind), menu, reduces, ahead, behind))
    return found


def _levels(
    known: dict,
    key: tuple,
    menu: Menu,
    reduces: bool,
    ahead: float,
    behind: tuple[float, float],
) -> tuple[tuple[float, float], ...]:
    if key not in known:
        known[key] = tuple(
            (_forward_us(unit, ahead), _backward_us(unit, reduces, *behind)) for unit in menu
        )
    return known[key]


def slack_us(menus: Sequence[Menu], plain: OptionTimes, full: OptionTimes) -> float:
    """Return by how much a stage may be faster than its units' overlapped times, at most, in us a
    micro-batch.

    The units at its ends have no neighbour, and so fewer collectives beside them. In return no
    compute hides the gather of the unit that it begins with.
    """
    pairs = {
        pair
        for plainly, fully in zip(plain, full, strict=True)
        for pair in zip(plainly, fully, strict=True)
    }
    forward = max(full[0] - plain[0] for plain, full in pairs)
    backward = max(full[1] - plain[1] for plain, full in pairs)
    first = min(menu[0].gather_us for menu in menus)
    return max(0.0, forward - first) + max(0.0, 2 * backward - first)


def _forward_us(unit: Unit, beside_us: float) -> float:
    return _beside(unit.work.forward.us, beside_us, 0.0)


def _backward_us(unit: Unit, reduces: bool, gather_us: float, reduce_us: float) -> float:
    blocking = unit.blocking_us if reduces else 0.0
    kinds = ("I", "W") if unit.work.split else ("B",)
    return _beside(sum(map(unit.pass_us, kinds)), gather_us, reduce_us) + blocking


def _beside(compute_us: float, gather_us: float, reduce_us: float) -> float:
    """Return the time from the start of a unit to the start of the next one.

    Without a gather the next unit has its parameters, and waits for no collective.
    """
    collective_us = gather_us + reduce_us
    slowed = compute_us + OVERLAP_PRICE * min(compute_us, collective_us)
    return max(slowed, collective_us) if gather_us else slowed
