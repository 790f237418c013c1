"""What a candidate costs: a bound without simulating it, and the parts that `fitting` cuts.

Placements and the memory frontier are solved once per compute mesh and used at every micro-batch
and mesh; levels, buckets and units are kept by what they depend on, so that thousands of candidates
share a few hundred of them.

Bound of a candidate, in us, valid for all cuts and all choices of levels:

    pace       from the start of one unit to that of the next pass at least its compute at its
               fastest level, slowed by the gather and reduction beside it, and at least these
    memory     and at least what freeing the bytes that are too many takes (remat/options.py)
    pipeline   no contiguous cuts that have room beat shortest_pipeline of that
    traffic    the collective stream of some stage carries at least the mean over stages
    tail       norm, update and refreshed parameters of some stage: at least the mean over stages
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from meshwright.ir.dtypes import ITEM_BYTES
from meshwright.ir.mesh import Mesh
from meshwright.ir.plan import Bucket, InstancePlan, Param, Piece
from meshwright.ir.sizes import evaluate as evaluate_size
from meshwright.ir.sizes import num_elements
from meshwright.ir.traced import Traced

from ..bounds.analytic import Pace, full_pace, plain_pace, slack_us
from ..bounds.lp import Relaxed
from ..bounds.partition_bound import Passes, shortest_pipeline, shortest_start
from ..budget import BUDGET, SearchBudget
from ..clock import Clock
from ..cost.op_cost import Costs
from ..cost.phase_work import FunctionTable
from ..cost.piece_cost import WorkTable
from ..hardware.cluster import Cluster
from ..hardware.topology import Links
from ..pipeline.critical_path import Path
from ..pipeline.partition import Room
from ..pipeline.schedule_table import ScheduleTable
from ..pipeline.schedules import PLAIN, SPLIT
from ..remat.options import (
    CHOSEN,
    Level,
    Menu,
    Menus,
    Stage,
    offloads,
    proposals,
    undominated,
    with_staying,
)
from ..remat.rules import Kept, saved_values
from ..sharding.boundary_layouts import ShardedModel, shard_model
from ..simulate.simulator import OVERLAP_PRICE
from ..simulate.stage_memory import Storage
from ..simulate.step_model import (
    Holding,
    Precision,
    UnitTable,
    bucket_bytes,
    frozen_share,
    holdings,
    precision_of,
)
from .candidates import Candidate, may_offload
from .instances import instances_of, params_of
from .make_plan import choose_optimizer, choose_precision, choose_reduce_dtype
from .pins import Pins

INF = float("inf")


@dataclass(frozen=True)
class Layout:
    """Instances and buckets of a mesh, all on one stage."""

    instances: tuple[InstancePlan, ...]
    buckets: tuple[Bucket, ...]
    params: tuple[Param, ...]


@dataclass(frozen=True)
class Parts:
    """The units of a candidate in order, as if on one stage, each with its levels.

    kinds: a number for each unit, the same for those with equal levels and buckets.
    """

    table: UnitTable
    menus: tuple[Menu, ...]
    kinds: tuple[int, ...]
    plain: Pace
    full: Pace

    @cached_property
    def at_plain(self) -> Menus:
        return Menus.of(self.menus, self.plain)

    @cached_property
    def at_full(self) -> Menus:
        return Menus.of(self.menus, self.full)

    @cached_property
    def slack_us(self) -> float:
        return slack_us(self.menus, self.plain, self.full)

    @cached_property
    def least_us(self) -> float:
        """Compute of a micro-batch at the fastest levels."""
        return sum(min(map(sum, levels)) for levels in self.plain)

    @cached_property
    def least_passing_bytes(self) -> float:
        """What any function has alive in backward."""
        return min(u.work.backward.peak_bytes for menu in set(self.menus) for u in menu)

    def sends_us(self, ranks: Sequence[int], any_order: bool = False) -> tuple[float, ...]:
        """From every stage to the next at least; ranks: of the stages. any_order: whichever of pp
        and dp is the outer axis."""
        least = min(menu[0].work.exit_bytes for menu in self.menus[:-1])
        links = self.table.links
        transfer = links.least_transfer_us if any_order else links.transfer_us
        hops = list(zip(ranks, ranks[1:], strict=False))
        us = {hop: transfer(least, *hop) for hop in set(hops)}  # chunks pass the same ranks again
        return tuple(us[hop] for hop in hops)


def piece_at(piece: str, level: int) -> str:
    """The key of a piece at a level in a table of works."""
    return f"{piece}#{level}"


@dataclass
class Evaluator:
    """Costs of candidates for one model, cluster and batch.

    proposed: by compute mesh and piece, the sets of values to keep that deserve an exact price.
    """

    traced: Traced
    cluster: Cluster
    seq: int
    global_batch: int
    pins: Pins
    budget: SearchBudget = BUDGET
    clock: Clock = field(default_factory=Clock, compare=False)
    schedules: ScheduleTable = field(default_factory=ScheduleTable)
    functions: FunctionTable = field(default_factory=FunctionTable)
    sharded: dict[Mesh, ShardedModel] = field(default_factory=dict)
    tables: dict[tuple[Mesh, int], WorkTable] = field(default_factory=dict)
    layouts: dict[tuple, Layout] = field(default_factory=dict)
    proposed: dict[tuple[Mesh, str], tuple[Kept, ...]] = field(default_factory=dict)
    priced: dict[tuple, list[Level]] = field(default_factory=dict)
    parts: dict[tuple, Parts] = field(default_factory=dict)
    holdings: dict[tuple, list[Holding]] = field(default_factory=dict)
    pipelines: dict[tuple, float] = field(default_factory=dict)
    relaxed: dict[tuple, Relaxed] = field(default_factory=dict)
    paths: dict[tuple, list[Path]] = field(default_factory=dict)
    longer_tails: dict[tuple, float] = field(default_factory=dict)

    @cached_property
    def precision(self) -> Precision:
        dtype, pins = self.traced.dtype, self.pins
        precision, reduced = choose_precision(dtype, pins), choose_reduce_dtype(dtype, pins)
        return precision_of(dtype, precision, reduced, choose_optimizer(pins))

    @property
    def offloads(self) -> bool:
        return may_offload(self.cluster, self.pins)

    @property
    def any_order(self) -> bool:
        """Whether either outer axis may be chosen: bounds with pp outermost hold for both then."""
        return self.pins.outer is None and self.cluster.nodes > 1

    def bound_sends_us(self, c: Candidate, ranks: Sequence[int]) -> tuple[float, ...]:
        """What a bound may count for the sends between stages; ranks: of the stages.

        Reductions over dp take no longer with pp outermost. Sends may, so that the shorter ones
        are counted, unless the longer refresh makes up for all of them: no path has more sends
        than a rank's actions and the stages on the way there and back, and where refreshing makes
        every bucket's part of the tail longer by a share, it does so with any rank's tail.
        """
        parts = self.parts_of(c)
        own = parts.sends_us(ranks)
        if not self.any_order or (other := c.reordered()) is None:
            return own
        least = parts.sends_us(ranks, any_order=True)
        passes = 3 if c.schedule in SPLIT else 2
        sends = passes * c.chunks * c.num_microbatches + 4 * c.num_stages
        spared = sends * max(a - b for a, b in zip(own, least, strict=True))
        return own if self._longer_tail_us(c, other) >= spared else least

    def _longer_tail_us(self, c: Candidate, other: Candidate) -> float:
        """By how much the tail is longer at least with the other outer axis."""
        key = (c.mesh, c.zero)
        if key not in self.longer_tails:
            here, there = (
                UnitTable({}, c.zero, Links(self.cluster, x.mesh), self.precision)
                for x in (c, other)
            )
            buckets = self.layout(c).buckets
            tails = [(here.optimizer_us(b) + here.refresh_us(b), b) for b in buckets]
            share = min((there.refresh_us(b) - here.refresh_us(b)) / us for us, b in tails)
            self.longer_tails[key] = share * sum(us for us, _ in tails) / c.pp
        return self.longer_tails[key]

    def sharding(self, mesh: Mesh) -> ShardedModel:
        """Placements on a compute mesh, at one row a micro-batch; they never split rows of the
        batch."""
        if mesh not in self.sharded:
            rows = max(1, self.global_batch * mesh.num_devices // self.cluster.num_devices)
            with self.clock.layer("placements"):
                self.sharded[mesh] = shard_model(
                    self.traced.segmented,
                    self.traced.joints,
                    mesh=mesh,
                    cluster=self.cluster,
                    micro_batch=self.pins.micro_batch or 1,
                    seq=self.seq,
                    num_microbatches=rows // (self.pins.micro_batch or 1) or 1,
                    price=self.pins.price,
                    shard_matmul_weights=bool(self.pins.shard_weights),
                )
        return self.sharded[mesh]

    def levels(self, c: Candidate) -> dict[str, list[Level]]:
        """By piece name its levels, the fastest first; one where a rule is given and nothing may be
        offloaded."""
        split = c.schedule in SPLIT
        found = {}
        for name in self.sharding(c.compute).lowered:
            key = (c.compute, c.micro_batch, name, c.recompute, split)
            if key not in self.priced:
                with self.clock.layer("memory frontier"):
                    self.priced[key] = self._priced(c, name, split)
            found[name] = self.priced[key]
        return found

    def _priced(self, c: Candidate, name: str, split: bool) -> list[Level]:
        low = self.sharding(c.compute).lowered[name]
        if (c.compute, c.micro_batch) not in self.tables:
            self.tables[c.compute, c.micro_batch] = WorkTable(self.costs(c.compute, c.micro_batch))
        table = self.tables[c.compute, c.micro_batch]
        if c.recompute == CHOSEN:
            sets = self._proposed(c.compute, name)
        else:
            sets = (Kept(saved_values(low.graph, c.recompute)),)

        def level(kept: Kept) -> Level:
            given = low.graph, low.placements, kept.saved, split, kept.offloaded
            return kept, table.of(*given)

        found = undominated(map(level, sets), split)
        if not self.offloads:
            return found
        given = low.graph, low.placements
        away = [k for one in found for k in offloads(*given, one, table.costs, self.budget)]
        return with_staying(undominated([*found, *map(level, away)], split), found, split)

    def costs(self, mesh: Mesh, micro_batch: int) -> Costs:
        sizes, wide = {"B": micro_batch, "S": self.seq}, self.precision.wide_grads
        return Costs(self.cluster, mesh, sizes, wide, self.functions)

    def _proposed(self, mesh: Mesh, name: str) -> tuple[Kept, ...]:
        """At one row a micro-batch; bytes and times all grow with the rows."""
        if (mesh, name) not in self.proposed:
            low = self.sharding(mesh).lowered[name]
            costs = self.costs(mesh, self.pins.micro_batch or 1)
            self.proposed[mesh, name] = proposals(low.graph, low.placements, costs)
        return self.proposed[mesh, name]

    def layout(self, c: Candidate) -> Layout:
        key = (c.tp, c.cp, c.dp)
        if key not in self.layouts:
            sharded = self.sharding(c.compute)
            mesh = replace(c, pp=1).mesh
            params = params_of(self.traced, sharded)
            pieces = tuple(
                Piece(low.name, low.graph, low.placements, ()) for low in sharded.lowered.values()
            )
            stages = [0] * len(sharded.instances)
            parts = instances_of(self.traced, sharded, stages, params, pieces, mesh)
            self.layouts[key] = Layout(*parts, params)
        return self.layouts[key]

    def parts_of(self, c: Candidate) -> Parts:
        split = c.schedule in SPLIT
        key = (c.mesh, c.micro_batch, c.zero, c.recompute, split)
        if key not in self.parts:
            self.parts[key] = self._parts(c)
        return self.parts[key]

    def _parts(self, c: Candidate) -> Parts:
        layout, levels = self.layout(c), self.levels(c)
        works = {
            piece_at(name, k): work
            for name, found in levels.items()
            for k, (_, work) in enumerate(found)
        }
        table = UnitTable(works, c.zero, Links(self.cluster, c.mesh), self.precision)
        shared: dict[tuple, tuple[int, Menu]] = {}
        found = []
        for instance, holding in zip(layout.instances, self._holdings(c), strict=True):
            key = (instance.piece, holding.key)
            if key not in shared:
                pieces = (piece_at(instance.piece, k) for k in range(len(levels[instance.piece])))
                menu = tuple(table.unit(piece, holding) for piece in pieces)
                shared[key] = len(shared), menu
            found.append(shared[key])
        kinds, menus = zip(*found, strict=True)
        given = menus, kinds, c.zero >= 2
        return Parts(table, menus, kinds, plain_pace(*given), full_pace(*given))

    def _holdings(self, c: Candidate) -> list[Holding]:
        key = (c.tp, c.cp, c.dp, c.zero)
        if key not in self.holdings:
            layout = self.layout(c)
            self.holdings[key] = holdings(layout.instances, layout.buckets, c.zero, set())
        return self.holdings[key]

    def stored_bytes(self, c: Candidate) -> float:
        """What the fullest stage stores at least: the mean of parameters and their states."""
        share, buckets = frozen_share(c.mesh, c.zero, self.precision), self.layout(c).buckets
        held = sum(bucket_bytes(b) * (1 if b.trainable else share) for b in buckets) / c.pp
        return self.storage_bytes(c, held, 0.0)

    def storage_bytes(self, c: Candidate, bucket: float, largest: float) -> float:
        """Of a rank that holds buckets of so many bytes, and the largest of them."""
        return Storage(bucket, largest, c.mesh, c.zero, self.precision).total_bytes

    def bound_us(self, c: Candidate, limit_bytes: float | None = None) -> float:
        """A lower bound on the simulated step, for any cuts and levels that fit the limit (see
        above); inf where none do."""
        with self.clock.layer("bounds"):
            return self._bound_us(c, limit_bytes)

    def _bound_us(self, c: Candidate, limit_bytes: float | None) -> float:
        parts = self.parts_of(c)
        traffic = self._traffic_us(c, parts) / c.pp
        run = self._pipeline if c.pp > 1 else self._alone
        return max(run(c, parts, limit_bytes), traffic) + self._tail_us(c, parts)

    def floor_us(self, c: Candidate) -> float:
        """A lower bound that costs next to nothing, whatever the schedule, cuts and levels.

        Some rank is busy for the mean over ranks at least. A backward in two reads what both parts
        need twice and writes what the one hands to the other, so it is no faster than in one.
        """
        parts = self.parts_of(c)
        busy = c.num_microbatches * parts.least_us / c.pp
        return max(busy, self._traffic_us(c, parts) / c.pp) + self._tail_us(c, parts)

    def _tail_us(self, c: Candidate, parts: Parts) -> float:
        """After the last backward, of the rank that has most to do."""
        buckets, table = self.layout(c).buckets, parts.table
        tail = sum(table.optimizer_us(b) + table.refresh_us(b) for b in buckets) / c.pp
        return tail + table.links.world_us()

    def _traffic_us(self, c: Candidate, parts: Parts) -> float:
        """Of the collective streams of all stages in a step."""
        reduce = sum(menu[0].reduce_us for menu in parts.menus)
        gather = sum(menu[0].gather_us for menu in parts.menus)
        passes = c.num_microbatches if c.zero >= 2 else 1
        return passes * reduce + c.num_microbatches * 2 * gather

    def _alone(self, c: Candidate, parts: Parts, limit_bytes: float | None) -> float:
        """Of a rank that runs all units."""
        m, sharded = c.num_microbatches, c.zero >= 2
        late = 0.0 if sharded else OVERLAP_PRICE / (1 + OVERLAP_PRICE)
        slowed = late * sum(menu[0].reduce_us for menu in parts.menus[1:])
        one = sum(min(map(sum, levels)) for levels in parts.full)
        one += parts.menus[0][0].gather_us + parts.menus[-1][0].gather_us  # beside no compute
        if limit_bytes is not None:
            last = min(u.work.backward.peak_bytes for u in parts.menus[-1])
            take = self.room(c, parts, parts.at_full, limit_bytes, last)(0)
            one += [take(index) for index in range(len(parts.menus))][-1]
        return m * one + slowed + parts.menus[0][0].reduce_us

    def _pipeline(self, c: Candidate, parts: Parts, limit_bytes: float | None) -> float:
        if c.schedule not in PLAIN:
            if limit_bytes is not None and self._least_bytes(c) > limit_bytes:
                return INF
            limit_bytes = None  # beyond that its bound knows no memory
        key = (c.mesh, c.micro_batch, c.zero, c.recompute, c.schedule)
        if limit_bytes is not None:
            return self._shortest(c, parts, limit_bytes)
        if key not in self.pipelines:
            shortest = self._shortest if c.schedule in PLAIN else _busiest
            self.pipelines[key] = shortest(c, parts, None)
        return self.pipelines[key]

    def _shortest(self, c: Candidate, parts: Parts, limit_bytes: float | None) -> float:
        length = self._length(c, parts, parts.plain, parts.at_plain, limit_bytes)
        if parts.full != parts.plain:
            spared = (c.num_microbatches + c.pp) * parts.slack_us
            full = self._length(c, parts, parts.full, parts.at_full, limit_bytes)
            length = max(length, full - spared)
        return length

    def _length(
        self, c: Candidate, parts: Parts, pace: Pace, menus: Menus, limit_bytes: float | None
    ) -> float:
        """The pipeline bound at a pace."""
        reduces = [0.0 if c.zero >= 2 else menu[0].reduce_us for menu in parts.menus]
        room = None if limit_bytes is None else self.room(c, parts, menus, limit_bytes)

        send_us = min(self.bound_sends_us(c, range(c.pp)))

        def warmup(stage: int) -> int:
            return 1 if c.schedule == "gpipe" else held_of(c, stage)

        return shortest_pipeline(
            Passes.of(pace, reduces, OVERLAP_PRICE), c.pp, c.num_microbatches, warmup, room, send_us
        )

    def room(
        self,
        c: Candidate,
        parts: Parts,
        menus: Menus,
        limit_bytes: float,
        least_passing: float | None = None,
    ) -> Room:
        """By how much units are slower that fit a stage of 1F1B or GPipe, at least."""
        rest = limit_bytes - self.context_bytes(c)
        if least_passing is None:
            least_passing = parts.least_passing_bytes

        def stored(bucket: float, largest: float) -> float:
            return self.storage_bytes(c, bucket, largest)

        def longer(stage: int) -> Callable[[int], float]:
            return Stage(menus, stored, held_of(c, stage), rest, least_passing).add

        return longer

    def _least_bytes(self, c: Candidate) -> float:
        """What the fullest rank holds at least under any cuts: the mean over ranks, each at one
        moment of its schedule, every unit counted as on the stage where it weighs least."""
        moments = set(self.schedules.fullest(c.listing))
        held = 0.0
        for menu in self.parts_of(c).menus:
            works = [(u.work.kept_bytes, u.work.split) for u in menu]
            held += min(
                k * kept + w * (split.handed_bytes if split else 0.0)
                for k, w in moments
                for kept, split in works
            )
        return self.stored_bytes(c) + held / c.pp + self.context_bytes(c)

    def context_bytes(self, c: Candidate) -> float:
        context = self.traced.segmented.context
        sizes = {"B": c.micro_batch, "S": self.seq}
        given = sum(
            evaluate_size(num_elements(context.values[n].shape), sizes)
            * ITEM_BYTES[context.values[n].dtype]
            for n in context.outputs
        )
        return given + 2 * 8 * c.micro_batch * c.num_microbatches * self.seq


def held_of(c: Candidate, stage: int) -> int:
    """Micro-batches in flight on a stage of 1F1B or GPipe."""
    m = c.num_microbatches
    return m if c.schedule == "gpipe" else min(m, c.pp - stage)


def with_levels(
    instances: tuple[InstancePlan, ...], levels: Sequence[int]
) -> tuple[InstancePlan, ...]:
    """Instances of pieces at levels, as a table of works names them."""
    return tuple(
        replace(i, piece=piece_at(i.piece, k)) for i, k in zip(instances, levels, strict=True)
    )


def _busiest(c: Candidate, parts: Parts, limit_bytes: None) -> float:
    """What no cuts of an interleaved or zero-bubble pipeline beat, collectives aside.

    A rank is busy for all micro-batches, and starts no earlier than one has passed the stages
    before its first; unless W fills the end, one more goes back through them. These stages have a
    unit each at least, and where a rank has one stage, all that the ranks before it have.
    """
    m, split = c.num_microbatches, c.schedule in SPLIT
    forward = [min(f for f, _ in levels) for levels in parts.plain]
    both = [min(map(sum, levels)) for levels in parts.plain]
    if c.chunks == 1:
        return shortest_start(forward, both, c.pp, m)
    edge = forward if split else both
    before = sum(sum(edge[:rank]) for rank in range(c.pp))
    return max(sum(forward), (m * sum(both) + before) / c.pp)
