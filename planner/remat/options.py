"""Levels of a segment: how much it keeps for backward, from the fastest to the leanest.

The frontier (frontier.py) proposes sets of values to keep, next to the three rules; the piece's two
functions (cost/piece_cost.py) give their exact price, and a set that takes no less time than one
that keeps no more is dropped. A unit that may choose among levels is a *menu*, a tuple of
units.

Over the units of a stage the bytes that must go are taken where they cost least: on the lower hull
of every menu, cheapest slope first, the last one in part. That is the linear relaxation of one
level a unit, so no choice of levels is faster.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import ceil

from meshwright.ir.graph import Graph
from meshwright.ir.ops.questions import passing
from meshwright.ir.placement import Placement

from ..budget import BUDGET, SearchBudget
from ..cost.op_cost import Costs
from ..cost.piece_cost import PieceWork, offloadable
from ..simulate.step_model import Unit
from .frontier import frontier
from .rules import RULES, Kept, saved_values

CHOSEN = "chosen"  # the level of every instance is the planner's
Level = tuple[Kept, PieceWork]
Menu = tuple[Unit, ...]


def proposals(graph: Graph, placements: dict[str, Placement], costs: Costs) -> tuple[Kept, ...]:
    """Return sets of values to keep that deserve an exact price; each with and without those that
    backward can do without."""
    found = [c.saved for c in frontier(graph, placements, costs)]
    sets = dict.fromkeys([*found, *(saved_values(graph, rule) for rule in RULES)])
    names, more = tuple(graph.values), passing(graph)
    both = [(kept, tuple(n for n in names if n in more.union(kept))) for kept in sets]
    return tuple(map(Kept, dict.fromkeys(chain.from_iterable(both))))


def offloads(
    graph: Graph,
    placements: dict[str, Placement],
    level: Level,
    costs: Costs,
    budget: SearchBudget = BUDGET,
) -> tuple[Kept, ...]:
    """Return levels that keep the same values, some of them in the host's memory.

    These are the largest values, as many as the host link carries in the time of one pass, or a
    share of them.

    With more of them compute would wait for the link, and recomputing would be faster.
    """
    kept, work = level
    most_us = min(work.forward.us, work.backward.us)
    names, us = [], 0.0
    for size, name in offloadable(graph, placements, kept.saved, costs):
        copy_us = costs.cluster.device.launch_us + size / costs.cluster.host_link_bytes_per_s * 1e6
        if us + copy_us <= most_us:
            us += copy_us
            names.append(name)
    counts = dict.fromkeys(ceil(share * len(names)) for share in budget.offload_shares)
    return tuple(Kept(kept.saved, tuple(names[:count])) for count in counts if count)


def undominated(levels: Iterable[Level], split: bool) -> list[Level]:
    """Levels from the fastest to the leanest, none beaten in both."""
    order = sorted(levels, key=lambda p: (work_us(p[1], split), p[1].kept_bytes, p[0]))
    found: list[Level] = []
    for pair in order:
        if not found or pair[1].kept_bytes < found[-1][1].kept_bytes:
            found.append(pair)
    return found


def with_staying(levels: Iterable[Level], staying: Iterable[Level], split: bool) -> list[Level]:
    """Return levels and the staying ones, from which the last unit of a stage chooses."""
    found = dict([*levels, *staying])
    return sorted(found.items(), key=lambda p: (work_us(p[1], split), p[1].kept_bytes, p[0]))


def work_us(work: PieceWork, split: bool) -> float:
    """Both passes."""
    if not split:
        return work.forward.us + work.backward.us
    assert work.split is not None
    return work.forward.us + work.split.input_grad.us + work.split.weight_grad.us


@dataclass(frozen=True, order=True)
class Slope:
    """One step along the hull of a menu: us for each byte given up, and how many."""

    us_per_byte: float
    bytes: float
    level: int  # that it leads to


def fastest(points: Sequence[tuple[float, float]]) -> int:
    """The level of a menu's (us, kept bytes) to start from; the leanest among equals, as beside
    collectives levels may all take the same time."""
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
            Slope((points[k][0] - us) / (size - points[k][1]), size - points[k][1], k)
            for k in range(len(points))
            if points[k][1] < size
        ]
        if not ways:
            return found
        step = min(ways, key=lambda s: (s.us_per_byte, -s.bytes))
        found.append(step)
        at = step.level


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
        """inf where all of them have less to give."""
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
class Menus:
    """Numbers of menus that bounds ask for; times: of a unit's levels, (forward, backward).

    first: the fastest level of each. kinds: of each, a number; slopes: by that number. order: all
    slopes, cheapest first and then by kind, with the number of their kind.
    """

    menus: tuple[Menu, ...]
    first: tuple[int, ...]
    kinds: tuple[int, ...]
    slopes: tuple[Sequence[Slope], ...]
    order: tuple[tuple[Slope, int], ...]

    @staticmethod
    def of(menus: Sequence[Menu], times: Sequence[Sequence[tuple[float, float]]]) -> "Menus":
        numbers: dict[tuple, int] = {}  # in order of first use
        found: list[list[Slope]] = []
        kinds, first = [], []
        for menu, passes in zip(menus, times, strict=True):
            points = tuple(
                (f + b, u.work.kept_bytes) for u, (f, b) in zip(menu, passes, strict=True)
            )
            if points not in numbers:
                numbers[points] = len(found)
                found.append(slopes(points))
            kinds.append(numbers[points])
            first.append(fastest(points))
        order = sorted((s, kind) for kind, steps in enumerate(found) for s in steps)
        return Menus(tuple(menus), tuple(first), tuple(kinds), tuple(found), tuple(order))

    def freeing(self, indices: Iterable[int] = ()) -> Freeing:
        found = Freeing(self.kinds, self.order)
        for index in indices:
            found.add(index)
        return found


Storing = Callable[[float, float], float]  # (bucket bytes, the largest of them) -> bytes of a rank


@dataclass
class Stage:
    """The least extra us of a micro-batch for which units, added in order, fit a rank.

    held: micro-batches in flight. A choice of levels keeps K bytes of a micro-batch, k_u up to unit
    u, whose function has at least p_u alive; for every u

        stored + (held - 1) K + k_u + p_u <= limit

    of which the weaker ones with the least k_u, and with k_u = K and the least p of all, are taken.
    """

    menus: Menus
    stored: Storing
    held: int
    limit_bytes: float
    least_passing: float
    freeing: Freeing = field(init=False)
    fastest_bytes: float = 0.0
    least_bytes: float = 0.0
    moment_bytes: float = 0.0
    bucket_bytes: float = 0.0
    largest_bytes: float = 0.0

    def __post_init__(self) -> None:
        self.freeing = self.menus.freeing()

    def add(self, index: int) -> float:
        """Extra us with this unit too; inf where nothing fits."""
        menu = self.menus.menus[index]
        self.freeing.add(index)
        self.fastest_bytes += menu[self.menus.first[index]].work.kept_bytes
        self.least_bytes += min(u.work.kept_bytes for u in menu)
        passing = min(u.work.backward.peak_bytes for u in menu)
        self.moment_bytes = max(self.moment_bytes, self.least_bytes + passing)
        self.bucket_bytes += menu[0].owned_bytes
        self.largest_bytes = max(self.largest_bytes, menu[0].bucket_bytes)
        return self.freeing.us(self._excess())

    def _excess(self) -> float:
        """Bytes of a micro-batch that the fastest levels keep too many."""
        room = self.limit_bytes - self.stored(self.bucket_bytes, self.largest_bytes)
        excess = self.fastest_bytes - (room - self.least_passing) / self.held
        if self.held == 1:
            return float("inf") if self.moment_bytes > room else excess
        return max(excess, self.fastest_bytes - (room - self.moment_bytes) / (self.held - 1))


def priced_levels(menus: Menus) -> Iterator[tuple[int, ...]]:
    """The levels of all units when every byte has one price, from nothing up."""
    prices = sorted({slope.us_per_byte for slope, _ in menus.order})
    for price in (-1.0, *prices):
        picks = []
        for first, kind in zip(menus.first, menus.kinds, strict=True):
            taken = [s for s in menus.slopes[kind] if s.us_per_byte <= price]
            picks.append(taken[-1].level if taken else first)
        yield tuple(picks)
