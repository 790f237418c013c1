"""The units of a candidate before they are cut into stages, and what its bounds ask of them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from meshwright.ir.plan import Bucket, InstancePlan, Param

from ..bounds.analytic import OptionTimes, UnitTimes, overlapped_times, slack_us
from ..bounds.each import of_each
from ..bounds.partition_bound import LeastTimes
from ..remat.options import OptionHulls, UnitOptions
from ..simulate.step_model import UnitBuckets, UnitTable, bucket_bytes


@dataclass(frozen=True)
class Layout:
    """Instances and buckets of a mesh, all on one stage."""

    instances: tuple[InstancePlan, ...]
    buckets: tuple[Bucket, ...]
    params: tuple[Param, ...]

    @cached_property
    def stored_bytes(self) -> tuple[float, float]:
        """Return the bytes of all trained and of all frozen parameters."""
        trained, frozen = (
            sum(bucket_bytes(b) for b in self.buckets if b.trainable is of) for of in (True, False)
        )
        return trained, frozen


# A number for each unit, the same for units of equal pieces and buckets; of each number what it is.
UnitKinds: TypeAlias = tuple[tuple[int, ...], tuple[tuple[str, UnitBuckets], ...]]


def unit_kinds(units: Iterable[tuple[str, UnitBuckets]]) -> UnitKinds:
    """Return the kinds of units. units: the piece and the buckets of each."""
    numbers: dict[tuple, int] = {}
    kinds: list[int] = []
    distinct: list[tuple[str, UnitBuckets]] = []
    for piece, held in units:
        number = numbers.setdefault((piece, held.key), len(numbers))
        if number == len(distinct):
            distinct.append((piece, held))
        kinds.append(number)
    return tuple(kinds), tuple(distinct)


@dataclass(frozen=True)
class CandidateUnits:
    """The units of a candidate in order, as if on one stage, each with its options.

    kinds: a number for each unit, the same for units of equal options and buckets. compute: times
    without collectives (bounds/analytic.py).
    """

    table: UnitTable
    options: tuple[UnitOptions, ...]
    kinds: tuple[int, ...]
    compute: OptionTimes

    @cached_property
    def overlapped(self) -> OptionTimes:
        """Return times beside collectives (bounds/analytic.py)."""
        reduces = self.table.zero >= 2
        return overlapped_times(self.options, self.kinds, reduces, self.overlap_price)

    @cached_property
    def distinct(self) -> dict[UnitOptions, int]:
        """Return the options of units of every kind, and how many units have them."""
        of_kind, counts = dict(zip(self.kinds, self.options, strict=True)), Counter(self.kinds)
        found: dict[UnitOptions, int] = {}
        for kind, options in of_kind.items():
            found[options] = found.get(options, 0) + counts[kind]
        return found

    @property
    def overlap_price(self) -> float:
        """Return what compute beside collectives takes longer by, as a share of their time."""
        return self.table.links.cluster.overlap_price

    @property
    def overlapped_share(self) -> float:
        """Return how much shorter collectives make compute seem, at most, as a share of theirs."""
        return self.overlap_price / (1 + self.overlap_price)

    @cached_property
    def compute_hulls(self) -> OptionHulls:
        return OptionHulls.of(self.options, self.compute)

    @cached_property
    def overlapped_hulls(self) -> OptionHulls:
        return OptionHulls.of(self.options, self.overlapped)

    @cached_property
    def least_backward_us(self) -> list[float]:
        """Least backward of each unit in one, without what compute waits for."""
        return of_each(lambda options: min(u.pass_us("B") for u in options), self.options)

    @cached_property
    def slack_us(self) -> float:
        return slack_us(self.options, self.compute, self.overlapped)

    @cached_property
    def least_compute_us(self) -> list[float]:
        """Least forward and backward of each unit without collectives, whatever its option."""
        return of_each(_least_us, self.compute)

    @cached_property
    def last_reduced_us(self) -> float:
        """Return the time of all reductions after a stage's last backward has begun."""
        return sum(options[0].reduce_us + options[0].replicas_us for options in self.options)

    def least_until_last_us(self, num_microbatches: int) -> float:
        """Return the least compute of all units before their last backward."""
        m = num_microbatches

        def least_us(times: UnitTimes) -> float:
            return min(m * f + (m - 1) * b for f, b in times)

        return sum(of_each(least_us, self.compute))

    @cached_property
    def least_overlapped_us(self) -> list[float]:
        """Least forward and backward of each unit beside its collectives, whatever its option."""
        return of_each(_least_us, self.overlapped)

    @cached_property
    def least_alone(self) -> LeastTimes:
        """Return the least times of all units without collectives."""
        return self._least(self.compute)

    @cached_property
    def least_beside(self) -> LeastTimes:
        """Return the least times of all units beside their collectives."""
        return self._least(self.overlapped)

    def _least(self, times: OptionTimes) -> LeastTimes:
        sharded = self.table.zero >= 2  # then reductions run after every backward
        reduces = [0.0 if sharded else options[0].reduce_us for options in self.options]
        return LeastTimes.of(times, reduces, self.overlap_price)

    @cached_property
    def least_passing_bytes(self) -> float:
        """Return what every function has alive in backward at least."""
        return min(u.work.backward.peak_bytes for options in self.distinct for u in options)

    @cached_property
    def frozen(self) -> int:
        """Return how many of the first units run no backward."""
        return sum(not options[0].work.runs_backward for options in self.options)

    def most_silent(self, num_stages: int) -> int:
        """Return how many of the first stages may get no gradient of their output, at most."""
        return min(self.frozen, num_stages - 1)

    @cached_property
    def busy_us(self) -> float:
        """Return the least compute of a micro-batch on all units."""
        return sum(self.least_compute_us)

    @cached_property
    def forwards_us(self) -> float:
        """Return the least forward of a micro-batch through all units."""
        return sum(self.least_forward_us)

    @cached_property
    def forward_share(self) -> float:
        """Return what a forward takes of a micro-batch, at least, by the unit where that is
        least."""
        pairs = set(zip(self.least_forward_us, self.least_compute_us, strict=True))
        return min((forward / both for forward, both in pairs if both), default=0.0)

    @cached_property
    def least_forward_us(self) -> list[float]:
        """Return the least forward of each unit without collectives, whatever its option."""
        return of_each(lambda times: min(f for f, _ in times), self.compute)

    @cached_property
    def reduces_us(self) -> float:
        """Return the time of the reductions of all units."""
        return sum(options[0].reduce_us for options in self.options)

    @cached_property
    def gathers_us(self) -> float:
        """Return the time of all gathers of a micro-batch: in forward, and where backward runs."""
        first = [options[0] for options in self.options]
        return sum((1 + unit.work.runs_backward) * unit.gather_us for unit in first)

    def sends_us(self, ranks: Sequence[int], any_order: bool = False) -> tuple[float, ...]:
        """Return the least time from every stage to the next; ranks: of the stages. any_order:
        whichever of pp and dp is the outer axis."""
        return self.table.links.sends_us(self._least_exit_bytes, tuple(ranks), any_order)

    @cached_property
    def _least_exit_bytes(self) -> float:
        return min(options[0].work.exit_bytes for options in self.options[:-1])


def _least_us(times: UnitTimes) -> float:
    return min(map(sum, times))


def piece_under(piece: str, option: int) -> str:
    """The key of a piece under an option in a table of works."""
    return f"{piece}#{option}"


def placed_under(
    instances: tuple[InstancePlan, ...], stages: Sequence[int], picks: Sequence[int]
) -> tuple[InstancePlan, ...]:
    """Instances on stages, under the picked options, as a table of works names their pieces."""
    return tuple(
        InstancePlan(i.name, piece_under(i.piece, k), stage, i.params, i.buckets, i.first_draw)
        for i, stage, k in zip(instances, stages, picks, strict=True)
    )
