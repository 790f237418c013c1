"""Times of one micro-batch through units, by rematerialisation option, beside their collectives.

The options of a unit differ in compute alone; gathers and reductions belong to its buckets.
"""

from collections.abc import Sequence

from ..remat.options import UnitOptions
from ..simulate.step_model import Unit

# By option of a unit: (forward, backward) of a micro-batch, in us.
UnitTimes = tuple[tuple[float, float], ...]
OptionTimes = list[UnitTimes]  # by unit


def compute_times(units: Sequence[UnitOptions], kinds: Sequence[int], reduces: bool) -> OptionTimes:
    """Return the times of units without collectives, but for what compute waits for.

    kinds: a number for each unit, the same for units of equal options. reduces: gradients are
    reduced after every micro-batch.
    """
    of = dict(zip(kinds, units, strict=True))
    times = {kind: _times(options, reduces) for kind, options in of.items()}
    return [times[kind] for kind in kinds]


def overlapped_times(
    units: Sequence[UnitOptions], kinds: Sequence[int], reduces: bool, price: float
) -> OptionTimes:
    """Return the times of units beside their collectives.

    Beside a unit run the gather of the next one and, in backward, before it the reduction of the
    one just done. The next unit waits for its gather. Where backward ends nothing is gathered.
    price: overlap_price of the cluster.
    """
    of = dict(zip(kinds, units, strict=True))
    triples = list(zip((None, *kinds[:-1]), kinds, (*kinds[1:], None), strict=True))
    times = {triple: _between(of, *triple, reduces, price) for triple in dict.fromkeys(triples)}
    return [times[triple] for triple in triples]


def _between(
    of: dict[int, UnitOptions],
    before: int | None,
    kind: int,
    after: int | None,
    reduces: bool,
    price: float,
) -> UnitTimes:
    """Return the times of a unit between others, by their kinds. None: there is none."""
    earlier = None if before is None else of[before][0]
    later = None if after is None else of[after][0]
    ahead = later.gather_us if later else 0.0
    gather = earlier.gather_us if earlier and earlier.work.runs_backward else 0.0
    reduce = later.reduce_us if later and reduces else 0.0
    return _times(of[kind], reduces, ahead, gather, reduce, price)


def _times(
    options: UnitOptions,
    reduces: bool,
    ahead_us: float = 0.0,
    gather_us: float = 0.0,
    reduce_us: float = 0.0,
    price: float = 0.0,
) -> UnitTimes:
    """Return the times of options beside the collectives of a forward and of a backward."""
    return tuple(
        (
            _beside(unit.work.forward.us, ahead_us, 0.0, price),
            _backward_us(unit, reduces, gather_us, reduce_us, price),
        )
        for unit in options
    )


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


def _backward_us(
    unit: Unit, reduces: bool, gather_us: float, reduce_us: float, price: float
) -> float:
    if not unit.work.runs_backward:
        return 0.0
    blocking = unit.blocking_us if reduces else 0.0
    kinds = ("I", "W") if unit.work.split else ("B",)
    return _beside(sum(map(unit.pass_us, kinds)), gather_us, reduce_us, price) + blocking


def _beside(compute_us: float, gather_us: float, reduce_us: float, price: float) -> float:
    """Return the time from the start of a unit to the start of the next one.

    Without a gather the next unit has its parameters, and waits for no collective.
    """
    collective_us = gather_us + reduce_us
    slowed = compute_us + price * min(compute_us, collective_us)
    return max(slowed, collective_us) if gather_us else slowed
