"""Times of one micro-batch through units that may choose their level, beside their collectives.

Of a unit's levels only compute differs; gathers and reductions belong to its buckets.
"""

from collections.abc import Sequence

from ..remat.options import Menu
from ..simulate.simulator import OVERLAP_PRICE
from ..simulate.step_model import Unit

OptionTimes = list[
    tuple[tuple[float, float], ...]
]  # of each unit by level: (forward, backward), us


def compute_times(menus: Sequence[Menu], kinds: Sequence[int], reduces: bool) -> OptionTimes:
    """Return compute alone. kinds: of each unit, the same number for equal menus. reduces:
    gradients go over dp after every micro-batch."""
    known: dict[tuple, tuple[tuple[float, float], ...]] = {}
    return [
        _levels(known, (kind,), menu, reduces, 0.0, (0.0, 0.0))
        for kind, menu in zip(kinds, menus, strict=True)
    ]


def overlapped_times(menus: Sequence[Menu], kinds: Sequence[int], reduces: bool) -> OptionTimes:
    """Return each unit beside the gather of the next one in that direction and, backward, the
    reduction of the one before; the next one waits for its gather, which runs behind that
    reduction."""
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
    """Return how much of the overlapped times a stage may be spared, in us a micro-batch.

    Its ends have no neighbour there; in return the gather of the first unit of a pass, whichever it
    is, stands beside no compute.
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
    """From the start of a unit to that of the next one, whose parameters arrive meanwhile; where
    they are there already nothing waits for the reduction."""
    collective_us = gather_us + reduce_us
    slowed = compute_us + OVERLAP_PRICE * min(compute_us, collective_us)
    return max(slowed, collective_us) if gather_us else slowed
