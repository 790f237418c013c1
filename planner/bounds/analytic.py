"""Times of one micro-batch through units, by rematerialisation option, beside their collectives.

The options of a unit differ in compute alone; gathers and reductions belong to its buckets.
"""

from collections.abc import Sequence

from ..remat.options import UnitOptions
from ..simulate.simulator import OVERLAP_PRICE
from ..simulate.step_model import Unit

# By option of a unit: (forward, backward) of a micro-batch, in us.
UnitTimes = tuple[tuple[float, float], ...]
OptionTimes = list[UnitTimes]  # by unit


def compute_times(units: Sequence[UnitOptions], kinds: Sequence[int], reduces: bool) -> OptionTimes:
    """Return the times of units without collectives, but for what compute waits for.

    kinds: a number for each unit, the same for units of equal options. reduces: gradients are
    reduced after every micro-batch.
    """
    known: dict[tuple, UnitTimes] = {}
    return [
        _times(known, (kind,), options, reduces, 0.0, (0.0, 0.0))
        for kind, options in zip(kinds, units, strict=True)
    ]


def overlapped_times(
    units: Sequence[UnitOptions], kinds: Sequence[int], reduces: bool
) -> OptionTimes:
    """Return the times of units beside their collectives.

    Beside a unit run the gather of the next one and, in backward, before it the reduction of the
    one just done. The next unit waits for its gather. Where backward ends nothing is gathered.
    """
    known: dict[tuple, UnitTimes] = {}
    found = []
    last = len(units) - 1
    for index, options in enumerate(units):
        after = units[index + 1][0] if index < last else None
        ahead = after.gather_us if after else 0.0
        before = units[index - 1][0] if index else None
        gather = before.gather_us if before and before.work.runs_backward else 0.0
        behind = (gather, after.reduce_us if after and reduces else 0.0)
        found.append(_times(known, (kinds[index], ahead, behind), options, reduces, ahead, behind))
    return found


def _times(
    known: dict,
    key: tuple,
    options: UnitOptions,
    reduces: bool,
    ahead: float,
    behind: tuple[float, float],
) -> UnitTimes:
    if key not in known:
        known[key] = tuple(
            (_forward_us(unit, ahead), _backward_us(unit, reduces, *behind)) for unit in options
        )
    return known[key]


def slack_us(units: Sequence[UnitOptions], compute: OptionTimes, overlapped: OptionTimes) -> float:
    """Return by how much a stage may be faster than its units' overlapped times, at most, in us a
    micro-batch.

    The units at its ends have no neighbour, and so fewer collectives beside them. In return no
    compute hides the gather of the unit that it begins with.
    """
    pairs = {
        pair
        for alone, beside in zip(compute, overlapped, strict=True)
        for pair in zip(alone, beside, strict=True)
    }
    forward = max(beside[0] - alone[0] for alone, beside in pairs)
    backward = max(beside[1] - alone[1] for alone, beside in pairs)
    first = min(options[0].gather_us for options in units)
    return max(0.0, forward - first) + max(0.0, 2 * backward - first)


def _forward_us(unit: Unit, beside_us: float) -> float:
    return _beside(unit.work.forward.us, beside_us, 0.0)


def _backward_us(unit: Unit, reduces: bool, gather_us: float, reduce_us: float) -> float:
    if not unit.work.runs_backward:
        return 0.0
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
