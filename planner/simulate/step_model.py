"""A plan as the simulator sees it: per stage the units it runs, what they cost and what they hold.

A pp rank runs one stage or several; what is stored and updated belongs to the rank.

A *unit* is a segment instance on its stage: one piece, its buckets, and the collectives that the
ZeRO level makes of them. Built from the plan and the cluster alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from meshwright.ir.dtypes import ITEM_BYTES
from meshwright.ir.mesh import PIPELINE, REDUCED, REPLICA, STORAGE, TENSOR, Mesh
from meshwright.ir.plan import Bucket, InstancePlan, Plan
from meshwright.ir.schedule import Schedule

from ..cost.mix import mix_of_plan
from ..cost.op_cost import Costs
from ..cost.piece_cost import PieceWork, WorkTable
from ..hardware.cluster import OVERLAP_PRICE, Cluster
from ..hardware.topology import Links
from .iteration import Iteration, iterations_of

# Of each optimizer the tensors of a parameter's size that it keeps, and how often it reads or
# writes one beyond what all do. Muon's numbers are for hidden matrices (direction and update;
# iteration.py has what is between them). Adafactor's rows and columns are next to nothing; it reads
# weights and gradients twice, and writes its update and reads it twice.
STATES = {
    "adamw": (2, 0),
    "sgd": (1, 0),
    "lion": (1, 0),
    "schedule-free": (2, 0),
    "muon": (1, 4),
    "adafactor": (0, 5),
}

# On GPUs one launch of it clips, rounds and copies, too (runtime/optimizers/fused_adamw.py).
FUSED = "adamw"

# Units whose offloaded values may be on their way (IN_TRANSIT of the runtime; a test holds them
# equal).
IN_TRANSIT = 2
# Of what matmuls read and write to add to gradients: the most that their flops do not hide, and the
# rows over which it falls; in the dtype of weights, and in a wider one.
SUMS, WIDE_SUMS = (1.1, 400.0), (1.1, 800.0)


@dataclass(frozen=True)
class Precision:
    """Bytes of an element: of parameters, of gradients where they are summed and where they
    travel, of what the optimizer keeps, and of what one update moves. fused: of what it moves on a
    GPU, which is less for FUSED.

    An update's norm reads the gradient; clipping reads and writes it; the rule reads parameter,
    gradient and its states and writes all but the gradient; clearing writes the gradient. With
    float32 masters these stand for the parameter, and a copy reads them and writes the parameter;
    where weights round stochastically the rule works on copies in float32 (runtime/optimizers/).
    FUSED needs no passes for clipping and copies: it writes the parameter as it updates.
    """

    param: int
    grad: int
    carried: int
    state: int
    moved: int
    fused: int

    @property
    def wide_grads(self) -> bool:
        """Return whether gradients are summed in another type than parameters have."""
        return self.grad != self.param

    @property
    def copies(self) -> bool:
        """Return whether gradients are copied to travel."""
        return self.carried != self.grad


def precision_of(
    dtype: str, precision: str, summed: str, reduce_dtype: str, optimizer: str, rounding: str
) -> Precision:
    """Return bytes of an element. summed, reduce_dtype: of gradients on a rank, and underway."""
    item, grad, carried = ITEM_BYTES[dtype], ITEM_BYTES[summed], ITEM_BYTES[reduce_dtype]
    states, further = STATES[optimizer]
    passes = 2 + 2 * states + further  # over the weights and their states
    if precision == "master":
        kept, more = grad, item + grad
    else:
        kept, more = item, _cast_bytes(item, grad, states, passes, rounding)
    moved = 5 * grad + passes * kept + more
    fused = 3 * grad + passes * kept + (item if precision == "master" else 0)
    launched = optimizer == FUSED and dtype != "f64"
    stored = (states + (precision == "master")) * kept
    return Precision(item, grad, carried, stored, moved, fused if launched else moved)


def _cast_bytes(item: int, grad: int, states: int, passes: int, rounding: str) -> int:
    """Return the bytes that casts move around an update of weights without masters.

    Nearest rounding casts gradients to the dtype of weights. Stochastic rounding casts weights,
    states and gradients to float32 and the first two back, and the rule moves float32.
    """
    wide = ITEM_BYTES["f32"]
    if rounding != "stochastic":
        return 2 * item if grad != item else 0
    gradients = 2 * wide if grad != wide else 0
    return 2 * (1 + states) * (item + wide) + gradients + passes * (wide - item)


def precision_of_plan(plan: Plan) -> Precision:
    given = plan.dtype, plan.precision, plan.grad_dtype, plan.reduce_dtype, plan.optimizer
    return precision_of(*given, plan.rounding)


def exposed_sum_bytes(work: PieceWork, wider: float) -> float:
    """Return the bytes of gradients, read and written by the matmuls that add to them, that their
    flops do not hide. wider: bytes of a sum for one of the weight.

    Of 11 steps on an H200 (2026-11-30, benchmarks/README.md). By itself a matmul of float32 sums
    shows 8 bytes an element by 1.2 of their time at 512 rows, 1.0 at 1,024, 0.56 at 2,048 and 0.3
    at 4,096, one of bfloat16 4 bytes by 0.8, 0.5, 0.2 and none.
    """
    total, per_row = work.sums
    most, rows = WIDE_SUMS if wider > 1 else SUMS
    return 2 * wider * min(most * total, rows * per_row)


@dataclass(frozen=True)
class Unit:
    """One instance. Times in us, sizes in bytes of one rank.

    gather_us: parameters before use (ZeRO 3). reduce_us: gradients over the ranks that
    store them, when this instance
    completes them. blocking_us: what compute waits for before that, gradients over tp and copies of
    them in the dtype that travels. bucket_bytes: its parameters, whole;
    owned_bytes: those that no earlier unit of the rank holds, a frozen one for the share of a byte
    that it takes (`frozen_share`); frozen_bytes: the frozen ones among them, in full.
    replicas_us: summing reduced shards over replicas, once a step, where gradients are reduced
    every micro-batch. sums_us: what matmuls take to add to gradients beyond their flops.
    """

    name: str
    work: PieceWork
    accumulate_us: float
    sums_us: float
    gather_us: float
    reduce_us: float
    blocking_us: float
    bucket_bytes: float
    owned_bytes: float
    replicas_us: float = 0.0
    frozen_bytes: float = 0.0

    def named(self, name: str) -> "Unit":
        """Return the unit under a name: `replace` takes ten times as long."""
        found = object.__new__(Unit)
        vars(found).update(vars(self), name=name)
        return found

    def pass_us(self, kind: str) -> float:
        """Compute of an action of a kind: F, B, I or W, gradients added where they are made."""
        if kind == "F":
            return self.work.forward.us
        if kind == "B":
            return self.work.backward.us + self.accumulate_us + self.sums_us
        assert self.work.split is not None, self.name
        phase = self.work.split.weight_grad if kind == "W" else self.work.split.input_grad
        added_us = self.accumulate_us + self.sums_us
        return phase.us + (added_us if self.completes_in(kind) else 0.0)

    def completes_in(self, kind: str) -> bool:
        """Return whether an action of a kind adds its gradients."""
        late = self.work.split is not None and self.work.split.adds_late
        return kind == "B" or (kind == "W" and late) or (kind == "I" and not late)


@dataclass(frozen=True)
class StepModel:
    """Everything the simulator asks of a plan.

    stage_ranks: of every stage its pp rank. send_us: by stage, activations to the next one (and
    gradients back). optimizer_us: by rank, memory traffic of the update. refresh_us: by rank,
    gathering updated parameters (ZeRO 1, 2). tied_us: by rank, summing gradients of parameters with
    homes elsewhere. overlap_price: of the cluster.
    """

    stages: tuple[tuple[Unit, ...], ...]
    stage_ranks: tuple[int, ...]
    schedule: Schedule
    zero: int
    reduces_every_microbatch: bool
    num_microbatches: int
    send_us: tuple[float, ...]
    optimizer_us: tuple[float, ...]
    refresh_us: tuple[float, ...]
    tied_us: tuple[float, ...]
    sync_us: float
    overlap_price: float = OVERLAP_PRICE


def work_table(plan: Plan, cluster: Cluster) -> WorkTable:
    cluster = mix_of_plan(plan, cluster).on(cluster)
    wide, issued = precision_of_plan(plan).wide_grads, cluster.issued(plan.replays)
    return WorkTable(Costs(issued, plan.mesh.compute, plan.sizes, wide_grads=wide))


def step_model(
    plan: Plan,
    cluster: Cluster,
    table: WorkTable | None = None,
    held: "HeldByStage | None" = None,
    stored: "StoredTable | None" = None,
) -> StepModel:
    """The step of a plan on a cluster. held: what `held_of_plan` says, where it is known. stored:
    what is known of buckets on its links and at its memory's bandwidth."""
    table = table or work_table(plan, cluster)
    split = plan.splits_backward
    works = {
        p.name: table.of(p.graph, p.placements, p.saved, split, p.offloaded) for p in plan.pieces
    }
    links = Links(cluster, plan.mesh)
    stored = {} if stored is None else stored
    precision, iterated = precision_of_plan(plan), iterations_of(plan)
    units = UnitTable(works, plan.zero, links, precision, iterated, stored=stored)
    parts = plan.instances, plan.buckets, plan.stage_ranks, plan.schedule
    return units.step(*parts, plan.num_microbatches, held)


@dataclass
class UnitTable:
    """Units and steps under one mesh and ZeRO level. works: by piece name. iterated: what Muon
    iterates on, by parameter."""

    works: dict[str, PieceWork]
    zero: int
    links: Links
    precision: Precision
    iterated: dict[str, Iteration] = field(default_factory=dict)
    known: dict[tuple, Unit] = field(default_factory=dict)
    stored: "StoredTable" = field(default_factory=dict)
    refreshed: dict[tuple[int, str], float] = field(default_factory=dict)

    def step(
        self,
        instances: tuple[InstancePlan, ...],
        buckets: tuple[Bucket, ...],
        stage_ranks: tuple[int, ...],
        schedule: Schedule,
        num_microbatches: int,
        held: "HeldByStage | None" = None,
    ) -> StepModel:
        """held: what `held_by_stage` says of the rest, where it is known."""
        held = held or held_by_stage(instances, buckets, stage_ranks, self.zero)
        stages = tuple(
            tuple(self.unit(item.piece, of_it).named(item.name) for item, of_it in stage)
            for stage in held
        )
        homes = [{stage_ranks[s] for s in b.stages} for b in buckets]
        stored = [
            [(b, len(at) > 1) for b, at in zip(buckets, homes, strict=True) if rank in at]
            for rank in range(len(schedule))
        ]
        return StepModel(
            stages,
            stage_ranks,
            schedule,
            self.zero,
            self.zero >= 2,
            num_microbatches,
            self._sends(stages, stage_ranks),
            tuple(sum(self.optimizer_us(b) for b, _ in found) for found in stored),
            tuple(sum(self.refresh_us(b) for b, _ in found) for found in stored),
            tuple(sum(self._tied_us(b) for b, tied in found if tied) for found in stored),
            self.links.world_us(),
            self.links.cluster.overlap_price,
        )

    def _sends(
        self, stages: tuple[tuple[Unit, ...], ...], stage_ranks: tuple[int, ...]
    ) -> tuple[float, ...]:
        ways = zip(stages, stage_ranks, stage_ranks[1:], strict=False)
        transfer = self.links.transfer_us
        return (*(transfer(u[-1].work.exit_bytes, *ends) for u, *ends in ways), 0.0)

    def unit(self, piece: str, held: "UnitBuckets") -> Unit:
        """A unit without a name; equal ones are one object."""
        key = (piece, held.key)
        if key not in self.known:
            self.known[key] = self._unit(self.works[piece], held)
        return self.known[key]

    def _unit(self, work: PieceWork, held: "UnitBuckets") -> Unit:
        if held.key not in self.stored:
            self.stored[held.key] = self._stored(held)
        found = self.stored[held.key]
        hbm = self.links.cluster.device.hbm_bytes_per_s / 1e6
        wider = self.precision.grad / self.precision.param
        # Read both, write the sum; where matmuls add, their flops hide part of what they read.
        accumulate = (1 + 2 * wider) * (found.trained_bytes - work.added_bytes) / hbm
        sums = exposed_sum_bytes(work, wider) / hbm
        return Unit("", work, accumulate + found.shards_us, sums, *found.of_unit)

    def _stored(self, held: "UnitBuckets") -> "_Stored":
        """What a unit takes and holds for its buckets, whatever its piece computes."""
        mine, fresh, owned = held.mine, held.fresh, held.owned
        links, cuts = self.links, self.links.mesh.count(*STORAGE)
        whole, ready = sum(map(bucket_bytes, mine)), sum(map(bucket_bytes, fresh))
        trained, shards = sum(bucket_bytes(b) for b in mine if b.trainable), 0.0
        if self.zero >= 2:  # the buffer is cleared, and what was reduced is added to the shard
            hbm = links.cluster.device.hbm_bytes_per_s / 1e6
            wider = self.precision.grad / self.precision.param
            shards = wider * (ready + 3 * ready / cuts) / hbm
        gather = 0.0
        if self.zero == 3:
            gather = sum(links.group_us("all_gather", bucket_bytes(b), *STORAGE) for b in mine)
        carried = self.precision.carried / self.precision.param
        reduce = sum(self._reduce_us(carried * bucket_bytes(b)) for b in fresh)
        replicas = sum(self._replicas_us(carried * bucket_bytes(b)) for b in fresh)
        partial = sum(
            links.joint_us("all_reduce", carried * size, axes)
            for b in fresh
            for axes, size in _partial_bytes(b)
        )
        blocking, kept = partial + self._copies_us(ready), sum(map(bucket_bytes, owned))
        frozen = sum(bucket_bytes(b) for b in owned if not b.trainable)
        if frozen:
            kept -= frozen * (1 - frozen_share(links.mesh, self.zero, self.precision))
        if self.zero < 2:  # both once a step
            reduce, replicas = reduce + replicas, 0.0
        of_unit = gather, reduce, blocking, whole, kept, replicas, frozen
        return _Stored(trained, shards, of_unit)

    def _reduce_us(self, size: float) -> float:
        """Summing gradients where they are stored: whole, or each rank its shard."""
        if self.zero == 0:
            return self.links.group_us("all_reduce", size, *REDUCED)
        return self.links.group_us("reduce_scatter", size, *STORAGE)

    def _replicas_us(self, size: float) -> float:
        """Summing shards over replicas; replicated storage has done so already."""
        if self.zero == 0:
            return 0.0
        return self.links.group_us("all_reduce", size / self.links.mesh.count(*STORAGE), REPLICA)

    def _copies_us(self, ready: float) -> float:
        """Memory traffic of the copy that travels; level 0 copies it back, the others' shards are
        read in place of gradients. ready: bytes of the buckets."""
        precision = self.precision
        if self.links.mesh.count(*REDUCED) == 1 or not precision.copies:
            return 0.0
        moved = (precision.grad + precision.carried) / precision.param * ready
        hbm = self.links.cluster.device.hbm_bytes_per_s / 1e6
        return (2 if self.zero == 0 else 1) * moved / hbm

    def optimizer_us(self, bucket: Bucket) -> float:
        """Memory traffic of the norm, the clip, the update, and of clearing gradients, which level
        1 holds whole; and Muon's iteration."""
        if not bucket.trainable:
            return 0.0
        device, precision = self.links.cluster.device, self.precision
        cuts = self.links.mesh.count(*STORAGE) if self.zero else 1
        moved = (precision.fused if device.type == "cuda" else precision.moved) / cuts
        cleared = precision.grad * (1 - 1 / cuts) if self.zero == 1 else 0.0
        own = (moved + cleared) * bucket.numel / device.hbm_bytes_per_s * 1e6
        return own + self.iteration_us(bucket)

    def iteration_us(self, bucket: Bucket) -> float:
        """Products and passes of Muon's iteration, and the exchange of a bucket's directions and
        updates; those of tensor cuts are not counted."""
        mine = [self.iterated[e.param] for e in bucket.entries if e.param in self.iterated]
        if not mine:
            return 0.0
        device, size = self.links.cluster.device, bucket_bytes(bucket)
        flops, moved = sum(m.flops for m in mine), sum(m.moved for m in mine) * self.precision.param
        each = flops / device.matmul_rate(bucket.dtype) + moved / device.hbm_bytes_per_s
        gathered = self.links.group_us("all_gather", size, *STORAGE) if self.zero else 0.0
        exchanged = gathered + self._reduce_us(size) + self._replicas_us(size)
        return each * 1e6 / self.links.mesh.count(*REDUCED, TENSOR) + exchanged

    def refresh_us(self, bucket: Bucket) -> float:
        """Gathering the updated parameters, where all of them are kept."""
        if self.zero not in (1, 2) or not bucket.trainable:
            return 0.0
        key = bucket.numel, bucket.dtype
        if key not in self.refreshed:
            gathered = "all_gather", bucket_bytes(bucket)
            self.refreshed[key] = self.links.group_us(*gathered, *STORAGE)
        return self.refreshed[key]

    def _tied_us(self, bucket: Bucket) -> float:
        if not bucket.trainable:
            return 0.0
        carried = self.precision.carried / self.precision.param * bucket_bytes(bucket)
        size = carried / (self.links.mesh.count(*STORAGE) if self.zero else 1)
        return self.links.group_us("all_reduce", size, PIPELINE)


@dataclass(frozen=True)
class _Stored:
    """Of a unit's buckets: bytes of trained ones, us of clearing and adding shards, and the fields
    of the unit from gather_us on."""

    trained_bytes: float
    shards_us: float
    of_unit: tuple[float, ...]


StoredTable: TypeAlias = dict[tuple, _Stored]  # by the key of the buckets


@dataclass(frozen=True)
class UnitBuckets:
    """Buckets of an instance. mine: those it reads; fresh: whose gradients its backward completes
    (a frozen one has none); owned: that count as stored with it. key: equal for instances that cost
    the same."""

    mine: tuple[Bucket, ...]
    fresh: tuple[Bucket, ...]
    owned: tuple[Bucket, ...]
    key: tuple


def unit_buckets(
    instances: Sequence[InstancePlan], buckets: Mapping[str, Bucket], zero: int, stored: set[str]
) -> list[UnitBuckets]:
    """The buckets of a stage's instances; one that several share is completed by the first.

    buckets: by name. stored: names of buckets that earlier stages of the rank hold; this stage's
    are added.
    """
    seen: set[str] = set() if zero >= 2 else set(stored)  # 2, 3: every stage reduces
    found = []
    for item in instances:
        mine = tuple(buckets[name] for name in item.buckets)
        fresh, owned = (tuple(b for b in mine if b.name not in old) for old in (seen, stored))
        fresh = tuple(b for b in fresh if b.trainable)
        seen.update(item.buckets)
        stored.update(item.buckets)
        key = tuple(
            (b.numel, b.dtype, _partial_bytes(b), b in fresh, b in owned, b.trainable) for b in mine
        )
        found.append(UnitBuckets(mine, fresh, owned, key))
    return found


HeldByStage: TypeAlias = tuple[tuple[tuple[InstancePlan, UnitBuckets], ...], ...]


def held_of_plan(plan: Plan) -> HeldByStage:
    """Return the instances of each stage of a plan with their buckets."""
    return held_by_stage(plan.instances, plan.buckets, plan.stage_ranks, plan.zero)


def held_by_stage(
    instances: Sequence[InstancePlan],
    buckets: Sequence[Bucket],
    stage_ranks: tuple[int, ...],
    zero: int,
) -> HeldByStage:
    """Return the instances of each stage with their buckets."""
    mine: list[list[InstancePlan]] = [[] for _ in stage_ranks]
    for item in instances:
        mine[item.stage].append(item)
    stored: dict[int, set[str]] = {rank: set() for rank in stage_ranks}
    by_name = {b.name: b for b in buckets}
    return tuple(
        tuple(zip(found, unit_buckets(found, by_name, zero, stored[rank]), strict=True))
        for found, rank in zip(mine, stage_ranks, strict=True)
    )


def frozen_share(mesh: Mesh, zero: int, precision: Precision) -> float:
    """Return what a rank stores of a frozen parameter, as a share of a trained one's."""
    cuts = [1 if zero < level else mesh.count(*STORAGE) for level in (3, 2, 1)]
    sizes = (precision.param, precision.grad, precision.state)
    weight, *others = (size / cut for size, cut in zip(sizes, cuts, strict=True))
    return weight / (weight + sum(others))


def bucket_bytes(bucket: Bucket) -> float:
    return bucket.numel * ITEM_BYTES[bucket.dtype]


def _partial_bytes(bucket: Bucket) -> tuple[tuple[tuple[str, ...], int], ...]:
    """(axes, bytes) of the regions whose gradients are summed over the same axes."""
    found: dict[tuple[str, ...], int] = {}
    stops = [e.offset for e in bucket.entries[1:]] + [bucket.numel]
    for entry, stop in zip(bucket.entries, stops, strict=True):
        if entry.partial:
            size = (stop - entry.offset) * ITEM_BYTES[bucket.dtype]
            found[entry.partial] = found.get(entry.partial, 0) + size
    return tuple(found.items())
