"""The schedules of one search and what is asked of them again and again, each made once."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from meshwright.ir.schedule import Schedule

from .computing import Computing, computing_by_rank
from .critical_path import Waits, waits_of
from .peak_moments import Moment, MomentArrays, moment_arrays, peak_moments
from .repeats import Repeats, repeats_of
from .schedules import listed, maximin_moments, stage_ranks, stages_held

Made = TypeVar("Made")


class Listing(NamedTuple):
    """Name and sizes of a schedule. chunks: stages of a rank."""

    name: str
    pp: int
    num_microbatches: int
    chunks: int

    @property
    def stage_ranks(self) -> tuple[int, ...]:
        """Return the pp rank of every stage."""
        return stage_ranks(self.name, self.pp, self.chunks)

    @property
    def steady(self) -> "Listing":
        """Return the shortest listing whose ranks have the same in flight at all their moments.

        From three micro-batches a rank on they repeat, but in GPipe, which holds all of them.
        """
        count = 2 * self.pp + 1 + (self.num_microbatches - 1) % self.pp
        longer = self.name != "gpipe" and self.num_microbatches > 3 * self.pp
        return self._replace(num_microbatches=count) if longer else self


@dataclass
class ScheduleTable:
    """Schedules by listing. known: by what was asked and of what."""

    known: dict[tuple, Any] = field(default_factory=dict)

    def _once(self, make: Callable[..., Made], *asked: Hashable) -> Made:
        key = make.__name__, *asked
        if key not in self.known:
            self.known[key] = make(*asked)
        return self.known[key]

    def schedule(self, of: Listing, silent: int = 0) -> Schedule:
        """Return the actions of every rank; silent: as for `make_schedule`."""
        return self._once(listed, *of, silent)

    def waits(self, of: Listing, silent: int = 0) -> Waits:
        """Return what its compute actions wait for; silent: as for `make_schedule`."""
        return self._once(self._waits, of, silent)

    def _waits(self, of: Listing, silent: int) -> Waits:
        return waits_of(self.schedule(of, silent))

    def repeats(self, of: Listing, silent: int = 0) -> Repeats | None:
        """Return what a schedule repeats; silent: as for `make_schedule`."""
        return self._once(self._repeats, of, silent)

    def _repeats(self, of: Listing, silent: int) -> Repeats | None:
        return repeats_of(self.schedule(of, silent), of.num_microbatches)

    def computing(self, of: Listing) -> tuple[Computing, ...]:
        """Return the compute actions of every rank, until what they hold repeats."""
        return self._once(self._computing, of.steady)

    def _computing(self, of: Listing) -> tuple[Computing, ...]:
        return computing_by_rank(self.schedule(of))

    def held(self, of: Listing) -> list[tuple[int, int]]:
        """Return `schedules.most_held` of every stage."""
        return self._once(self._held, of.steady)

    def _held(self, of: Listing) -> list[tuple[int, int]]:
        return stages_held(self.schedule(of), of.stage_ranks)

    def maximin(self, of: Listing) -> tuple[tuple[int, int], ...]:
        """Return `schedules.maximin_moments`."""
        return self._once(self._maximin, of.steady)

    def _maximin(self, of: Listing) -> tuple[tuple[int, int], ...]:
        return maximin_moments(self.schedule(of), of.stage_ranks)

    def peaks(self, of: Listing, most_at_last: bool) -> tuple[tuple[Moment, ...], ...]:
        """Return `peak_moments` by rank."""
        return self._once(self._peaks, of.steady, most_at_last)

    def _peaks(self, of: Listing, most_at_last: bool) -> tuple[tuple[Moment, ...], ...]:
        return peak_moments(self.schedule(of), len(of.stage_ranks), most_at_last)

    def moments(self, of: Listing, most_at_last: bool) -> MomentArrays:
        """Return `peaks` as arrays."""
        return self._once(self._moments, of.steady, most_at_last)

    def _moments(self, of: Listing, most_at_last: bool) -> MomentArrays:
        return moment_arrays(self.peaks(of, most_at_last), of.stage_ranks)
