"""What a candidate costs: a bound without simulating it, cuts within memory, the simulated step.

Placements are solved once per tp and used at every micro-batch and mesh; pieces, buckets and units
are kept by what they depend on, so that thousands of candidates share a few hundred of them.

Bound of a candidate, in us, valid for all cuts:

    pace       from the start of one unit to that of the next pass at least its compute, slowed by
               the gather and reduction beside it, and at least these themselves
    pipeline   no contiguous cuts that have room beat shortest_pipeline of that
    traffic    the collective stream of some stage carries at least the mean over stages
    tail       norm, update and refreshed parameters of some stage: at least the mean over stages
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from meshwright.ir.dtypes import ITEM_BYTES
from meshwright.ir.placement import Mesh
from meshwright.ir.plan import Bucket, InstancePlan, Param, Piece
from meshwright.ir.sizes import evaluate as evaluate_size
from meshwright.ir.sizes import num_elements
from meshwright.ir.traced import Traced

from .chain import ShardedModel, shard_model
from .cluster import Cluster
from .cost import Costs
from .cuts import Passes, Room, balanced, shortest_pipeline, shortest_start, stages_of
from .driver import choose_optimizer, choose_precision
from .layout import instances_of, params_of, with_stages
from .links import Links
from .memory import Filling, Storage, model_peaks
from .pins import Pins
from .recompute import saved_values
from .schedules import PLAIN, SPLIT, fullest_moments, make_schedule, most_held, stage_ranks
from .simulator import OVERLAP_PRICE, Timeline, simulate
from .space import Candidate
from .step import Precision, StepModel, Unit, UnitTable, bucket_bytes, precision_of
from .work import PieceWork, WorkTable


@dataclass(frozen=True)
class Layout:
    """Instances and buckets of a (tp, dp), all on one stage."""

    instances: tuple[InstancePlan, ...]
    buckets: tuple[Bucket, ...]
    params: tuple[Param, ...]


@dataclass(frozen=True)
class Fitted:
    """A candidate cut into stages that fit: first unit of each, its step, and its peak."""

    candidate: Candidate
    starts: tuple[int, ...]
    model: StepModel
    timeline: Timeline
    peak_bytes: float


@dataclass
class Evaluator:
    """Costs of candidates for one model, cluster and batch."""

    traced: Traced
    cluster: Cluster
    seq: int
    global_batch: int
    pins: Pins
    sharded: dict[int, ShardedModel] = field(default_factory=dict)
    tables: dict[tuple[int, int], WorkTable] = field(default_factory=dict)
    layouts: dict[tuple[int, int], Layout] = field(default_factory=dict)
    saved: dict[tuple[int, str, str], tuple[str, ...]] = field(default_factory=dict)
    units: dict[tuple, tuple[UnitTable, tuple[Unit, ...]]] = field(default_factory=dict)
    pipelines: dict[tuple, float] = field(default_factory=dict)

    @cached_property
    def precision(self) -> Precision:
        precision = choose_precision(self.traced.dtype, self.pins)
        return precision_of(self.traced.dtype, precision, choose_optimizer(self.pins))

    def sharding(self, tp: int) -> ShardedModel:
        """Placements on a tp axis, at one row a micro-batch; they never split rows of the batch."""
        if tp not in self.sharded:
            rows = max(1, self.global_batch * tp // self.cluster.num_devices)
            self.sharded[tp] = shard_model(
                self.traced.segmented,
                self.traced.joints,
                tp=tp,
                cluster=self.cluster,
                micro_batch=self.pins.micro_batch or 1,
                seq=self.seq,
                num_microbatches=rows // (self.pins.micro_batch or 1) or 1,
                price=self.pins.price,
                shard_matmul_weights=bool(self.pins.shard_weights),
            )
        return self.sharded[tp]

    def works(self, c: Candidate) -> dict[str, PieceWork]:
        """By piece name."""
        key = (c.tp, c.micro_batch)
        if key not in self.tables:
            sizes = {"B": c.micro_batch, "S": self.seq}
            self.tables[key] = WorkTable(Costs(self.cluster, c.tp, sizes))
        found = {}
        for name, low in self.sharding(c.tp).lowered.items():
            rule = (c.tp, name, c.recompute)
            if rule not in self.saved:
                self.saved[rule] = saved_values(low.graph, c.recompute)
            parts = low.graph, low.placements, self.saved[rule]
            found[name] = self.tables[key].of(*parts, c.schedule in SPLIT)
        return found

    def layout(self, c: Candidate) -> Layout:
        key = (c.tp, c.dp)
        if key not in self.layouts:
            sharded = self.sharding(c.tp)
            mesh = Mesh((("pp", 1), ("dp", c.dp), ("tp", c.tp)))
            params = params_of(self.traced, sharded)
            pieces = tuple(
                Piece(low.name, low.graph, low.placements, ()) for low in sharded.lowered.values()
            )
            stages = [0] * len(sharded.instances)
            parts = instances_of(self.traced, sharded, stages, params, pieces, mesh)
            self.layouts[key] = Layout(*parts, params)
        return self.layouts[key]

    def stage_units(self, c: Candidate) -> tuple[UnitTable, tuple[Unit, ...]]:
        """All units in order, as if on one stage."""
        key = (c.pp, c.dp, c.tp, c.micro_batch, c.zero, c.recompute, c.schedule in SPLIT)
        if key not in self.units:
            layout = self.layout(c)
            table = UnitTable(self.works(c), c.zero, Links(self.cluster, c.mesh), self.precision)
            self.units[key] = table, table.units(layout.instances, layout.buckets)
        return self.units[key]

    def stored_bytes(self, c: Candidate) -> float:
        """What the fullest stage stores at least: the mean of parameters and their states."""
        held = sum(bucket_bytes(b) for b in self.layout(c).buckets) / c.pp
        return Storage(held, 0.0, c.dp, c.zero, self.precision).total_bytes

    def bound_us(self, c: Candidate, limit_bytes: float | None = None) -> float:
        """A lower bound on the simulated step, for any cuts that fit the limit (see above)."""
        table, units = self.stage_units(c)
        m, sharded = c.num_microbatches, c.zero >= 2
        traffic = sum(u.reduce_us for u in units) + m * sum(2 * u.gather_us for u in units)
        traffic += (m - 1) * sum(u.reduce_us for u in units) if sharded else 0.0
        if c.pp == 1:
            first = units[0].reduce_us
            late = 0.0 if sharded else OVERLAP_PRICE / (1 + OVERLAP_PRICE)
            slowed = late * sum(u.reduce_us for u in units[1:])
            compute = m * (sum(map(sum, _pace(units, sharded))) - _slack(units, sharded))
            compute += slowed + first
        else:
            compute = self._pipeline(c, units, limit_bytes)
        buckets = self.layout(c).buckets
        tail = sum(table.optimizer_us(b) + table.refresh_us(b) for b in buckets) / c.pp
        return max(compute, traffic / c.pp) + tail + table.links.world_us()

    def _pipeline(self, c: Candidate, units: tuple[Unit, ...], limit_bytes: float | None) -> float:
        sharded = c.zero >= 2
        if c.schedule not in PLAIN:
            if limit_bytes is not None and self._least_bytes(c) > limit_bytes:
                return float("inf")
            limit_bytes = None  # beyond that its bound knows no memory
        key = (c.pp, c.dp, c.tp, c.micro_batch, c.zero if sharded else 0, c.recompute, c.schedule)
        if limit_bytes is None and key in self.pipelines:
            return self.pipelines[key]
        if c.schedule not in PLAIN:
            self.pipelines[key] = _busiest(c, units)
            return self.pipelines[key]
        room = None if limit_bytes is None else self._room(c, limit_bytes)
        reduces = [0.0 if sharded else u.reduce_us for u in units]
        plain = [(_forward_us(u, 0.0), _backward_us(u, sharded, 0.0)) for u in units]
        paced = _pace(units, sharded)
        length = _length(c, plain, reduces, room)
        if paced != plain:
            slack = (c.num_microbatches + c.pp) * _slack(units, sharded)
            length = max(length, _length(c, paced, reduces, room) - slack)
        if limit_bytes is None:
            self.pipelines[key] = length
        return length

    def _least_bytes(self, c: Candidate) -> float:
        """What the fullest rank holds at least under any cuts: the mean over ranks, each at one
        moment of its schedule, every unit counted as on the stage where it weighs least."""
        _, units = self.stage_units(c)
        moments = set(fullest_moments(c.schedule, c.pp, c.num_microbatches, c.chunks))
        held = 0.0
        for unit in units:
            handed = unit.work.split.handed_bytes if unit.work.split else 0.0
            held += min(k * unit.work.kept_bytes + w * handed for k, w in moments)
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

    def starts(self, c: Candidate, limit_bytes: float) -> tuple[int, ...] | None:
        """The best cuts that fit the memory; None where none are found."""
        found = self._options(c, limit_bytes)
        if c.schedule in PLAIN and self.pins.cuts is None:  # their room counts all there is
            return next(found, None)
        return next((s for s in found if self._fits(c, self.model(c, s), limit_bytes)), None)

    def _options(self, c: Candidate, limit_bytes: float) -> Iterator[tuple[int, ...]]:
        """Cuts to try, the best first."""
        _, units = self.stage_units(c)
        times = [_unit_us(u, c.zero >= 2) for u in units]
        rooms: list[Callable[[], Room | None]] = [lambda: None, lambda: self._share(c, limit_bytes)]
        if self.pins.cuts is not None:
            yield (0, *(int(n) for n in self.pins.cuts.split(",")))
            return
        if c.schedule in PLAIN:
            rooms = [lambda: self._room(c, limit_bytes)]
        for room in rooms:
            best = balanced(times, c.num_stages, room())
            if best is not None:
                yield tuple(best)

    def _fits(self, c: Candidate, model: StepModel, limit_bytes: float) -> bool:
        return self.peak_bytes(c, model) <= limit_bytes

    def _room(self, c: Candidate, limit_bytes: float) -> Room:
        """Whether units still fit a stage that has a rank of its own."""
        count = c.num_microbatches

        def held(stage: int) -> tuple[int, int]:
            return count if c.schedule == "gpipe" else min(count, c.pp - stage), 0

        return self._takes(c, limit_bytes - self.context_bytes(c), held)

    def _share(self, c: Candidate, limit_bytes: float) -> Room:
        """Whether units still fit a stage within its share of a rank; a guess, as the stages of a
        rank are not fullest at once."""
        share = (limit_bytes - self.context_bytes(c)) / c.chunks
        schedule = make_schedule(c.schedule, c.pp, c.num_microbatches, c.chunks)
        ranks = stage_ranks(c.schedule, c.pp, c.chunks)
        return self._takes(c, share, lambda stage: most_held(schedule[ranks[stage]], stage))

    def _takes(
        self, c: Candidate, limit_bytes: float, held: Callable[[int], tuple[int, int]]
    ) -> Room:
        """Of a stage: whether units, each taken in order, stay within the limit."""
        _, units = self.stage_units(c)

        def room(stage: int) -> Callable[[int], bool]:
            filled, counts = Filling(c.schedule in SPLIT), held(stage)

            def takes(index: int) -> bool:
                filled.add(units[index])
                stored = filled.bucket_bytes, filled.largest_bytes, c.dp, c.zero, self.precision
                moment = filled.peak(*counts)
                return Storage(*stored).total_bytes + moment.total_bytes <= limit_bytes

            return takes

        return room

    def model(self, c: Candidate, starts: tuple[int, ...]) -> StepModel:
        """The step under cuts: first unit of each stage."""
        table, units = self.stage_units(c)
        layout = self.layout(c)
        stages = stages_of(starts, len(units))
        instances, buckets = with_stages(layout.instances, layout.buckets, stages)
        schedule = make_schedule(c.schedule, c.pp, c.num_microbatches, c.chunks)
        ranks = stage_ranks(c.schedule, c.pp, c.chunks)
        return table.step(instances, buckets, ranks, schedule, c.num_microbatches)

    def fit(self, c: Candidate, limit_bytes: float) -> Fitted | None:
        """Cut and simulate; None where no cuts are found that fit the memory."""
        for starts in self._options(c, limit_bytes):
            model = self.model(c, starts)
            peak = self.peak_bytes(c, model)
            if peak <= limit_bytes:
                return Fitted(c, starts, model, simulate(model), peak)
        return None

    def peak_bytes(self, c: Candidate, model: StepModel) -> float:
        """Of the fullest rank."""
        peaks = model_peaks(model, c.dp, self.precision, self.context_bytes(c))
        return max(p.total_bytes for p in peaks)

    def least_peak_bytes(self, c: Candidate) -> float:
        """The smallest limit that the candidate's cuts can meet, to 1%."""
        low, high = 0.0, 1e15
        while high > 1.01 * max(low, 1.0):
            middle = (max(low, 1.0) * high) ** 0.5
            if self.starts(c, middle) is None:
                low = middle
            else:
                high = middle
        return high


def _unit_us(unit: Unit, reduces: bool) -> float:
    """Compute of one micro-batch, forward and backward."""
    return _forward_us(unit, 0.0) + _backward_us(unit, reduces, 0.0)


def _forward_us(unit: Unit, beside_us: float) -> float:
    return _beside(unit.work.forward.us, beside_us)


def _backward_us(unit: Unit, reduces: bool, beside_us: float) -> float:
    partial = unit.partial_us if reduces else 0.0
    kinds = ("I", "W") if unit.work.split else ("B",)
    return _beside(sum(map(unit.pass_us, kinds)), beside_us) + partial


def _beside(compute_us: float, collective_us: float) -> float:
    """From the start of a unit to that of the next one, whose parameters arrive meanwhile."""
    slowed = compute_us + OVERLAP_PRICE * min(compute_us, collective_us)
    return max(slowed, collective_us)


def _busiest(c: Candidate, units: tuple[Unit, ...]) -> float:
    """What no cuts of an interleaved or zero-bubble pipeline beat, collectives aside.

    A rank is busy for all micro-batches, and starts no earlier than one has passed the stages
    before its first; unless W fills the end, one more goes back through them. These stages have a
    unit each at least, and where a rank has one stage, all that the ranks before it have.
    """
    m, split = c.num_microbatches, c.schedule in SPLIT
    forward = [_forward_us(u, 0.0) for u in units]
    both = [_unit_us(u, False) for u in units]
    if c.chunks == 1:
        return shortest_start(forward, both, c.pp, m)
    edge = forward if split else both
    before = sum(sum(edge[:rank]) for rank in range(c.pp))
    return max(sum(forward), (m * sum(both) + before) / c.pp)


def _length(
    c: Candidate, passes: list[tuple[float, float]], reduces: list[float], room: Room | None
) -> float:
    """The pipeline bound of units' (forward, backward) times."""
    units = Passes([f for f, _ in passes], [b for _, b in passes], reduces)

    def warmup(stage: int) -> int:
        return 1 if c.schedule == "gpipe" else min(c.num_microbatches, c.pp - stage)

    return shortest_pipeline(units, c.pp, c.num_microbatches, warmup, room)


def _pace(units: tuple[Unit, ...], sharded: bool) -> list[tuple[float, float]]:
    """(forward, backward) of each unit beside the gather of the next one in that direction and,
    backward, the reduction of the one before."""
    found = []
    last = len(units) - 1
    for index, unit in enumerate(units):
        after = units[index + 1] if index < last else None
        ahead = after.gather_us if after else 0.0
        behind = units[index - 1].gather_us if index else 0.0
        behind += after.reduce_us if after and sharded else 0.0
        found.append((_forward_us(unit, ahead), _backward_us(unit, sharded, behind)))
    return found


def _slack(units: tuple[Unit, ...], sharded: bool) -> float:
    """How much of `_pace` a stage may be spared, as its ends have no neighbour there; us a
    micro-batch."""
    pace = _pace(units, sharded)
    forward = max(f - _forward_us(u, 0.0) for u, (f, _) in zip(units, pace, strict=True))
    backward = max(b - _backward_us(u, sharded, 0.0) for u, (_, b) in zip(units, pace, strict=True))
    return forward + 2 * backward


def fixed_pins(fitted: Fitted, pins: Pins) -> Pins:
    """The pins that ask for exactly this candidate."""
    c = fitted.candidate
    cuts = ",".join(map(str, fitted.starts[1:])) or None
    return replace(
        pins,
        pp=c.pp,
        dp=c.dp,
        tp=c.tp,
        micro_batch=c.micro_batch,
        zero=c.zero,
        recompute=c.recompute,
        schedule=c.schedule,
        chunks=c.chunks if c.schedule == "interleaved" else None,
        cuts=cuts,
    )
