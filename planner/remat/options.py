"""Rematerialisation options: what a piece keeps for backward, from the fastest to the leanest.

The frontier (frontier.py) proposes sets of values to keep, next to the three rules; the piece's two
functions (cost/piece_cost.py) give their exact price, and a set that takes no less time than one
that keeps no more is dropped. An option of a piece is a saved set and the piece's work under it;
the options of a unit are that unit under each of them.

Over the units of a stage the bytes that must go are taken where they cost least: on the lower hull
of every unit's options, cheapest slope first, the last one in part. That is the linear relaxation
of one option a unit, so no choice of options is faster.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from math import ceil

from meshwright.ir.graph import Graph
from meshwright.ir.ops.questions import passing
from meshwright.ir.placement import Placement

from ..budget import BUDGET, SearchBudget
from ..cost.op_cost import Costs
from ..cost.piece_cost import PieceWork, offloadable
from ..simulate.beside import Beside
from ..simulate.step_model import Unit
from .frontier import frontier
from .rules import RULES, SavedSet, saved_values
from .statistics import with_statistics

CHOSEN = "chosen"  # the search takes an option for every instance
Option = tuple[SavedSet, PieceWork]
UnitOptions = tuple[Unit, ...]


def proposals(graph: Graph, placements: dict[str, Placement], costs: Costs) -> tuple[SavedSet, ...]:
    """Return sets of values to keep that deserve an exact price; each with and without those that
    backward can do without."""
    found = [c.saved for c in frontier(graph, placements, costs)]
    sets = dict.fromkeys([*found, *(saved_values(graph, rule) for rule in RULES)])
    if costs.joins_sums:
        functions = costs.functions
        sets = dict.fromkeys(with_statistics(graph, s, functions.of(graph, s)) for s in sets)
    names, more = tuple(graph.values), passing(graph)
    both = [(kept, tuple(n for n in names if n in more.union(kept))) for kept in sets]
    return tuple(map(SavedSet, dict.fromkeys(chain.from_iterable(both))))


def offloads(
    graph: Graph,
    placements: dict[str, Placement],
    option: Option,
    costs: Costs,
    budget: SearchBudget = BUDGET,
) -> tuple[SavedSet, ...]:
    """Return saved sets with the values of an option, some of them in the host's memory.

    These are the largest values, as many as the host link carries in the time of one pass, or a
    share of them.

    With more of them compute would wait for the link, and recomputing would be faster.
    """
    kept, work = option
    most_us = min(work.forward.us, work.backward.us)
    names, us = [], 0.0
    for size, name in offloadable(graph, placements, kept.saved, costs):
        copy_us = costs.cluster.device.launch_us + size / costs.cluster.host_link_bytes_per_s * 1e6
        if us + copy_us <= most_us:
            us += copy_us
            names.append(name)
    counts = dict.fromkeys(ceil(share * len(names)) for share in budget.offload_shares)
    return tuple(SavedSet(kept.saved, tuple(names[:count])) for count in counts if count)


def undominated(options: Iterable[Option], split: bool) -> list[Option]:
    """Options from the fastest to the leanest, none beaten in both."""
    order = sorted(options, key=lambda p: (work_us(p[1], split), p[1].kept_bytes, p[0]))
    found: list[Option] = []
    for option in order:
        if not found or option[1].kept_bytes < found[-1][1].kept_bytes:
            found.append(option)
    return found


def with_staying(options: Iterable[Option], staying: Iterable[Option], split: bool) -> list[Option]:
    """Return options and the staying ones, from which the last unit of a stage chooses."""
    found = dict([*options, *staying])
    return sorted(found.items(), key=lambda p: (work_us(p[1], split), p[1].kept_bytes, p[0]))


def work_us(work: PieceWork, split: bool) -> float:
    """Return forward and backward in us."""
    if not split:
        return work.forward.us + work.backward.us
    assert work.split is not None
    return work.forward.us + work.split.input_grad.us + work.split.weight_grad.us


@dataclass(frozen=True, order=True)
class Slope:
    """One step along the hull of a unit's options: us for each byte given up, and how many."""

    us_per_byte: float
    bytes: float
    option: int  # that it leads to


def fastest(points: Sequence[tuple[float, float]]) -> int:
    """Return the option to start from, of (us, kept bytes) each; the leanest among equals.

    Beside collectives all options of a unit may take the same time.
    """
    return min(range(len(points)), key=lambda k: points[k])


def slopes(points: Sequence[tuple[float, float]]) -> list[Slope]:
    """Return the steps along the lower hull of (us, kept bytes) from the fastest point on.

    The cheapest step comes first.
    """
    at = fastest(points)
    found: list[Slope] = []
    while True:
        us, size = points[at]
        ways = [
            ((t - us) / (size - kept), kept - size, k)
            for k, (t, kept) in enumerate(points)
            if kept < size
        ]
        if not ways:
            return found
        us_per_byte, less, at = min(ways)
        found.append(Slope(us_per_byte, -less, at))


@dataclass
class Freeing:
    """The least extra time in which units give up bytes; units are added one by one.

    kinds: by a unit's index, the number of its kind; units of a kind have equal slopes.
    """

    kinds: Sequence[int]
    order: Sequence[tuple[Slope, int]]  # all slopes, cheapest first, with the number of their kind
    counts: dict[int, int] = field(default_factory=dict)

    def add(self, index: int) -> None:
        kind = self.kinds[index]
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def us(self, needed_bytes: float) -> float:
        """Return the least time for these bytes; inf where the units have less to give."""
        total = 0.0
        if needed_bytes <= 0:
            return 0.0
        for slope, kind in self.order:
            count = self.counts.get(kind)
            if not count:
                continue
            given = count * slope.bytes
            if given >= needed_bytes:
                return total + needed_bytes * slope.us_per_byte
            total += given * slope.us_per_byte
            needed_bytes -= given
        return float("inf")


@dataclass(frozen=True)
class OptionHulls:
    """The lower hulls of the options of units, for bounds.

    first: by unit, its fastest option. kinds: a number for each unit; slopes: by that number.
    order: all slopes, cheapest first and then by kind, with the number of their kind.
    """

    units: tuple[UnitOptions, ...]
    first: tuple[int, ...]
    kinds: tuple[int, ...]
    slopes: tuple[Sequence[Slope], ...]
    order: tuple[tuple[Slope, int], ...]

    @staticmethod
    def of(
        units: Sequence[UnitOptions], times: Sequence[Sequence[tuple[float, float]]]
    ) -> "OptionHulls":
        """times: (forward, backward) by unit and option."""
        numbers: dict[tuple, int] = {}  # in order of first use
        found: list[list[Slope]] = []
        kinds, first = [], []
        for options, us in zip(units, times, strict=True):
            points = tuple(
                (f + b, u.work.kept_bytes) for u, (f, b) in zip(options, us, strict=True)
            )
            if points not in numbers:
                numbers[points] = len(found)
                found.append(slopes(points))
            kinds.append(numbers[points])
            first.append(fastest(points))
        order = sorted((s, kind) for kind, steps in enumerate(found) for s in steps)
        return OptionHulls(tuple(units), tuple(first), tuple(kinds), tuple(found), tuple(order))

    @cached_property
    def kept_bytes(self) -> tuple[tuple[float, float, float], ...]:
        """Return by unit the bytes that its fastest option keeps, the least of any, and the least
        that its backward has alive."""
        return tuple(
            (
                options[first].work.kept_bytes,
                min(u.work.kept_bytes for u in options),
                min(u.work.backward.peak_bytes for u in options),
            )
            for options, first in zip(self.units, self.first, strict=True)
        )

    def freeing(self, indices: Iterable[int] = ()) -> Freeing:
        found = Freeing(self.kinds, self.order)
        for index in indices:
            found.add(index)
        return found


# (bucket bytes, the largest mean of two that follow each other) -> bytes of a rank
Storing = Callable[[float, float], float]


@dataclass
class StageMemoryCost:
    """The least extra us of a micro-batch for which units, added in order, fit a rank.

    held: micro-batches in flight. A choice of options keeps K bytes of a micro-batch, k_u up to
    unit u, whose function has at least p_u alive; for every u

        stored + (held - 1) K + k_u + p_u <= limit

    of which the weaker ones with the least k_u, and with k_u = K and the least p of all, are taken.
    """

    hulls: OptionHulls
    stored: Storing
    held: int
    limit_bytes: float
    least_passing: float
    freeing: Freeing = field(init=False)
    fastest_bytes: float = 0.0
    least_bytes: float = 0.0
    moment_bytes: float = 0.0
    bucket_bytes: float = 0.0
    moving: Beside = field(default_factory=Beside)

    def __post_init__(self) -> None:
        self.freeing = self.hulls.freeing()

    def add(self, index: int) -> float:
        """Extra us with this unit too; inf where nothing fits."""
        fastest, least, passing = self.hulls.kept_bytes[index]
        self.freeing.add(index)
        self.fastest_bytes += fastest
        self.least_bytes += least
        self.moment_bytes = max(self.moment_bytes, self.least_bytes + passing)
        unit = self.hulls.units[index][0]
        self.bucket_bytes += unit.owned_bytes
        self.moving.add(unit.bucket_bytes)
        return self.freeing.us(self._excess())

    def _excess(self) -> float:
        """Return the bytes of a micro-batch that the fastest options keep too many."""
        free = self.limit_bytes - self.stored(self.bucket_bytes, self.moving.mean)
        excess = self.fastest_bytes - (free - self.least_passing) / self.held
        if self.held == 1:
            return float("inf") if self.moment_bytes > free else excess
        return max(excess, self.fastest_bytes - (free - self.moment_bytes) / (self.held - 1))


def picks_by_price(hulls: OptionHulls) -> Iterator[tuple[int, ...]]:
    """The options of all units when every byte has one price, from nothing up."""
    prices = sorted({slope.us_per_byte for slope, _ in hulls.order})
    for price in (-1.0, *prices):
        picks = []
        for first, kind in zip(hulls.first, hulls.kinds, strict=True):
            taken = [s for s in hulls.slopes[kind] if s.us_per_byte <= price]
            picks.append(taken[-1].option if taken else first)
        yield tuple(picks)
