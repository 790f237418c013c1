"""Lower bounds of a candidate that need no simulation and no linear program.

The bound of a candidate, in us, holds for all cuts and all options of its units:

    units      from the start of a unit to the start of the next one takes at least the unit's
               compute under its fastest option, slowed by the gather and reduction beside it, and
               at least these
    memory     units take longer by at least the cost of freeing the bytes that are too many
               (remat/options.py)
    pipeline   no contiguous cuts that fit the memory beat pipeline_bound of these times
    traffic    the collective stream of some rank carries at least the mean over ranks
    beside     and each collective runs beside compute, which it slows for as long, or while the
               rank waits: of us beside compute that takes a unit of time alone, 1 + price at most
    late       gradients of a stage are reduced for the last time once its last backward has begun:
               some rank computes until then and reduces for no less than the mean of both; where a
               rank has several stages, it computes all its forwards, which are earlier
    tail       norm, update and refreshed parameters of some stage: at least the mean over stages

It follows from the problem, the candidate and what is enough alone: from there on it is coarse.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..bounds.floor import Floor
from ..bounds.partition_bound import pipeline_bound, warmup_bound
from ..bounds.whole_units import busiest_us
from ..pipeline.partition import MemoryCost
from ..pipeline.schedules import PLAIN, SPLIT
from ..remat.options import OptionHulls, StageMemoryCost
from ..simulate.step_model import UnitTable
from .candidate_costs import CandidateCosts
from .candidate_units import CandidateUnits
from .candidates import Candidate

INF = float("inf")


@dataclass(frozen=True)
class CandidateBounds:
    """Bounds by the costs of a problem."""

    costs: CandidateCosts

    def bound_sends_us(self, c: Candidate, ranks: Sequence[int]) -> tuple[float, ...]:
        """Return what a bound may count for the sends between stages; ranks: of the stages.

        Reductions over dp take no longer with pp outermost. Sends may, so that the shorter ones
        are counted, unless the longer refresh makes up for all of them: no path has more sends
        than a rank's actions and the stages on the way there and back, and where refreshing makes
        every bucket's part of the tail longer by a share, it does so with any rank's tail.
        """
        units = self.costs.units_of(c)
        own = units.sends_us(ranks)
        if not self.costs.problem.any_order or (other := c.reordered()) is None:
            return own
        least = units.sends_us(ranks, any_order=True)
        passes = 3 if c.schedule in SPLIT else 2
        sends = passes * c.chunks * c.num_microbatches + 4 * c.num_stages
        spared = sends * max(a - b for a, b in zip(own, least, strict=True))
        return own if self._longer_tail_us(c, other) >= spared else least

    def _longer_tail_us(self, c: Candidate, other: Candidate) -> float:
        """Return the least by which the tail is longer with the other outer axis."""
        precision = self.costs.precision(c)
        key = (self.costs.placed(c.compute), c.mesh, c.zero, precision)
        if key not in self.costs.tails:
            iterated = self.costs.problem.iterated
            here, there = (
                UnitTable({}, c.zero, self.costs.links(x.mesh), precision, iterated)
                for x in (c, other)
            )
            buckets = [b for b in self.costs.layout(c).buckets if b.trainable]
            tails = [(here.optimizer_us(b) + here.refresh_us(b), b) for b in buckets]
            share = min((there.refresh_us(b) - here.refresh_us(b)) / us for us, b in tails)
            self.costs.tails[key] = share * sum(us for us, _ in tails) / c.pp
        return self.costs.tails[key]

    def bound_us(
        self, c: Candidate, limit_bytes: float | None = None, enough_us: float = INF
    ) -> float:
        """A lower bound on the simulated step, for any cuts and options that fit the limit (see
        above); inf where none do. From `enough_us` on it is a coarse one."""
        with self.costs.memo.clock.layer("bounds"):
            return self._bound_us(c, limit_bytes, enough_us)

    def _bound_us(self, c: Candidate, limit_bytes: float | None, enough_us: float) -> float:
        units = self.costs.units_of(c)
        tail = self._tail_us(c, units)
        least = self._collectives_us(c, units)
        if c.pp == 1:
            run = self._without_pipeline(c, units, limit_bytes)
        else:
            run = self._pipeline(c, units, limit_bytes, enough_us - tail)
        return max(run, least) + tail

    def floor_us(self, c: Candidate) -> float:
        """A lower bound that costs next to nothing, whatever the cuts and options.

        Some rank is busy for the mean over ranks at least. With one stage a rank it starts after
        forwards of those ahead of it, and their backwards come after it unless W fills the end
        (bounds/floor.py). A backward in two reads what both halves need twice and writes what I
        hands to W, so it is no faster than in one, whose units serve.
        """
        of, several = c.unsplit, c.chunks > 1
        given = c.micro_batch, c.num_microbatches, c.zero, c.recompute
        key = self.costs.placed(c.compute), c.mesh, *given, self.costs.problem.replays(of), several
        if key not in self.costs.floors:
            self.costs.floors[key] = self._floor(c, self.costs.units_of(of))
        floor = self.costs.floors[key]
        share = 0.0 if several else 1.0 if c.schedule in PLAIN else floor.forward_share
        return floor.step_us(c.pp, c.num_microbatches, share)

    def _floor(self, c: Candidate, units: CandidateUnits) -> Floor:
        collectives, tail = self._collectives_us(c, units), self._tail_us(c, units)
        return Floor(units.busy_us, units.forward_share, collectives, tail)

    def _tail_us(self, c: Candidate, units: CandidateUnits) -> float:
        """Return the least time after the last backward on the rank that has most to do then."""
        key = (self.costs.placed(c.compute), c.mesh, c.zero, self.costs.precision(c))
        if key not in self.costs.ends:
            buckets, table = self.costs.layout(c).buckets, units.table
            kinds = [(b.numel, b.dtype, b.trainable, table.iteration_us(b)) for b in buckets]
            first = dict(zip(kinds, buckets, strict=True))
            each = {k: table.optimizer_us(b) + table.refresh_us(b) for k, b in first.items()}
            tail = sum(each[k] for k in kinds) / c.pp
            self.costs.ends[key] = tail + table.links.world_us()
        return self.costs.ends[key]

    def _collectives_us(self, c: Candidate, units: CandidateUnits) -> float:
        """Return the least time until some rank has done its collectives."""
        traffic, late, m = self._traffic_us(c, units), units.last_reduced_us, c.num_microbatches
        beside = m * units.busy_us + units.overlapped_share * traffic
        if late and c.chunks == 1:
            late += units.least_until_last_us(m)
        elif late:
            late += m * units.forwards_us
        return max(traffic, beside, late) / c.pp

    def _traffic_us(self, c: Candidate, units: CandidateUnits) -> float:
        """Return the time of the collective streams of all ranks in a step."""
        earlier = c.num_microbatches - 1 if c.zero >= 2 else 0
        reduces = earlier * units.reduces_us
        return reduces + units.last_reduced_us + c.num_microbatches * units.gathers_us

    def _without_pipeline(
        self, c: Candidate, units: CandidateUnits, limit_bytes: float | None
    ) -> float:
        """Return the bound of a rank that runs all units."""
        m, sharded = c.num_microbatches, c.zero >= 2
        late = 0.0 if sharded else units.overlapped_share
        ends, *others = units.options[units.frozen :]  # the unit that backward ends with
        slowed = late * sum(options[0].reduce_us for options in others)
        one = sum(units.least_overlapped_us)
        one += units.options[0][0].gather_us + units.options[-1][0].gather_us  # beside no compute
        if limit_bytes is not None:
            last = min(u.work.backward.peak_bytes for u in units.options[-1])
            take = self.memory_cost(c, units, units.overlapped_hulls, limit_bytes, last)(0)
            one += [take(index) for index in range(len(units.options))][-1]
        return m * one + slowed + ends[0].reduce_us

    def _pipeline(
        self, c: Candidate, units: CandidateUnits, limit_bytes: float | None, enough_us: float
    ) -> float:
        if c.schedule not in PLAIN:
            if limit_bytes is not None and self._least_bytes(c) > limit_bytes:
                return INF
            limit_bytes = None  # beyond that its bound knows no memory
        if limit_bytes is not None:
            return self._plain(c, units, limit_bytes, enough_us)
        placed, m = self.costs.placed(c.compute), c.num_microbatches
        key = (placed, c.mesh, c.micro_batch, m, c.zero, c.recompute, c.schedule)
        found = self.costs.pipelines.get(key, INF)
        if found >= enough_us:  # then a coarse one, whatever was known before
            bound = self._plain if c.schedule in PLAIN else self._busiest
            found = bound(c, units, None, enough_us)
            if found < enough_us:
                self.costs.pipelines[key] = found
        return found

    def _busiest(
        self, c: Candidate, units: CandidateUnits, limit_bytes: None, enough_us: float
    ) -> float:
        """Return a bound in us on any cuts of an interleaved or zero-bubble pipeline.

        Collectives are left out.

        A rank is busy for all micro-batches, and starts no earlier than one has passed the stages
        before its first; unless W fills the end, one more goes back through them. These stages have
        a unit each at least, and where a rank has one stage, all that the ranks before it have. Of
        several stages a rank, some rank is busy for more than the mean, as units are whole.
        """
        m, split = c.num_microbatches, c.schedule in SPLIT
        forward = units.least_forward_us
        both = units.least_compute_us
        if c.chunks == 1:
            return warmup_bound(forward, both, c.pp, m)
        edge = forward if split else both
        before = sum(sum(edge[:rank]) for rank in range(c.pp))
        mean = (m * sum(both) + before) / c.pp
        return max(sum(forward), mean, m * self.busiest_us(c))

    def busiest_us(self, c: Candidate) -> float:
        """Return a bound on the time of one micro-batch on the rank that takes longest, in us. It
        is found once for units of equal times."""
        asked = tuple(self.costs.units_of(c).least_compute_us), c.listing.stage_ranks
        known = self.costs.memo.table("busiest ranks")
        if asked not in known:
            known[asked] = busiest_us(*asked)
        return known[asked]

    def _plain(
        self, c: Candidate, units: CandidateUnits, limit_bytes: float | None, enough_us: float
    ) -> float:
        """Return the bound of 1F1B or GPipe, the better of those without and beside collectives."""
        bound = self._plain_at(c, units, False, limit_bytes, enough_us)
        if bound < enough_us and units.overlapped != units.compute:
            spared = (c.num_microbatches + c.pp) * units.slack_us
            overlapped = self._plain_at(c, units, True, limit_bytes, enough_us + spared)
            bound = max(bound, overlapped - spared)
        return bound

    def _plain_at(
        self,
        c: Candidate,
        units: CandidateUnits,
        beside: bool,
        limit_bytes: float | None,
        enough_us: float,
    ) -> float:
        """The pipeline bound of units whose times are those beside collectives, or alone."""
        memory = None
        if limit_bytes is not None:
            hulls = units.overlapped_hulls if beside else units.compute_hulls
            memory = self.memory_cost(c, units, hulls, limit_bytes)

        def warmup(stage: int) -> int:
            return 1 if c.schedule == "gpipe" else held_of(c, stage)

        return pipeline_bound(
            units.least_beside if beside else units.least_alone,
            c.pp,
            c.num_microbatches,
            warmup,
            memory,
            min(self.bound_sends_us(c, range(c.pp))),
            units.most_silent(c.pp),
            enough_us,
        )

    def memory_cost(
        self,
        c: Candidate,
        units: CandidateUnits,
        hulls: OptionHulls,
        limit_bytes: float,
        least_passing: float | None = None,
    ) -> MemoryCost:
        """Return the least extra time in which units fit a stage of 1F1B or GPipe."""
        rest = limit_bytes - self.costs.problem.context_bytes(c)
        if least_passing is None:
            least_passing = units.least_passing_bytes

        # What is stored grows with both in proportion.
        of_bucket, of_moving = (self.costs.storage_bytes(c, one, 1.0 - one) for one in (1.0, 0.0))

        def stored(bucket: float, moving: float) -> float:
            return of_bucket * bucket + of_moving * moving

        def of_stage(stage: int) -> Callable[[int], float]:
            return StageMemoryCost(hulls, stored, held_of(c, stage), rest, least_passing).add

        return of_stage

    def may_fit(self, c: Candidate, limit_bytes: float) -> bool:
        """Return False where no cuts and options fit the limit; True proves nothing."""
        if c.schedule not in PLAIN:
            return self._least_bytes(c) <= limit_bytes
        units, index = self.costs.units_of(c), 0
        memory = self.memory_cost(c, units, units.compute_hulls, limit_bytes)
        for stage in range(c.pp):
            extra = memory(stage)
            while index < len(units.options) and extra(index) < INF:
                index += 1
        return index == len(units.options)

    def _least_bytes(self, c: Candidate) -> float:
        """Return bytes that some rank holds at least under any cuts: the mean over ranks.

        Each rank counts at one moment of its schedule, each unit on the stage where it holds least.
        """
        moments = set(self.costs.memo.schedules.maximin(c.listing))
        units, held = self.costs.units_of(c), 0.0
        for options, count in units.distinct.items():
            works = [(u.work.kept_bytes, u.work.split) for u in options]
            held += count * min(
                k * kept + w * (split.handed_bytes if split else 0.0)
                for k, w in moments
                for kept, split in works
            )
        return self.costs.stored_bytes(c) + held / c.pp + self.costs.problem.context_bytes(c)


def held_of(c: Candidate, stage: int) -> int:
    """Micro-batches in flight on a stage of 1F1B or GPipe."""
    m = c.num_microbatches
    return m if c.schedule == "gpipe" else min(m, c.pp - stage)
