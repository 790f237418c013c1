"""A plan as the simulator sees it: per stage the units it runs, what they cost and what they hold.

A *unit* is a segment instance on its stage: one piece, its buckets, and the collectives that the
ZeRO level makes of them. Built from the plan and the cluster alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from meshwright.ir.dtypes import ITEM_BYTES
from meshwright.ir.plan import Bucket, InstancePlan, Plan
from meshwright.ir.schedule import Schedule

from .cluster import Cluster
from .cost import Costs
from .links import Links
from .work import PieceWork, WorkTable

OPTIMIZER_MOMENTS = 2  # AdamW keeps two tensors of a parameter's size


@dataclass(frozen=True)
class Precision:
    """Bytes of an element: of parameters, of gradients where they are summed, of what the
    optimizer keeps, and of what one update moves.

    An update's norm reads the gradient; clipping reads and writes it; AdamW reads parameter,
    gradient and two moments and writes all but the gradient; clearing writes the gradient. With
    float32 masters these stand for the parameter, which is written once more
    (runtime/optimizer.py).
    """

    param: int
    grad: int
    state: int
    moved: int


def precision_of(dtype: str, precision: str) -> Precision:
    item = ITEM_BYTES[dtype]
    if precision == "master":
        wide = 4
        return Precision(item, wide, (OPTIMIZER_MOMENTS + 1) * wide, 11 * wide + item)
    return Precision(item, item, OPTIMIZER_MOMENTS * item, 11 * item)


@dataclass(frozen=True)
class Unit:
    """One instance. Times in us, sizes in bytes of one rank.

    gather_us: parameters before use (ZeRO 3). reduce_us: gradients over dp, when this instance
    completes them. partial_us: gradients over tp, blocking. bucket_bytes: its parameters, whole;
    owned_bytes: those that no earlier unit of the stage holds.
    """

    name: str
    work: PieceWork
    accumulate_us: float
    gather_us: float
    reduce_us: float
    partial_us: float
    bucket_bytes: float
    owned_bytes: float


@dataclass(frozen=True)
class StepModel:
    """Everything the simulator asks of a plan.

    send_us: by stage, activations to the next one (and gradients back). optimizer_us: by stage,
    memory traffic of the update. refresh_us: by stage, gathering updated parameters (ZeRO 1, 2).
    tied_us: by stage, summing gradients of parameters with homes elsewhere.
    """

    stages: tuple[tuple[Unit, ...], ...]
    schedule: Schedule
    zero: int
    reduces_every_microbatch: bool
    num_microbatches: int
    send_us: tuple[float, ...]
    optimizer_us: tuple[float, ...]
    refresh_us: tuple[float, ...]
    tied_us: tuple[float, ...]
    sync_us: float


def work_table(plan: Plan, cluster: Cluster) -> WorkTable:
    return WorkTable(Costs(cluster, plan.mesh.size("tp"), plan.sizes))


def step_model(plan: Plan, cluster: Cluster, table: WorkTable | None = None) -> StepModel:
    """The step of a plan on a cluster."""
    table = table or work_table(plan, cluster)
    works = {p.name: table.of(p.graph, p.placements, p.saved) for p in plan.pieces}
    precision = precision_of(plan.dtype, plan.precision)
    units = UnitTable(works, plan.zero, Links(cluster, plan.mesh), precision)
    return units.step(plan.instances, plan.buckets, plan.schedule, plan.num_microbatches)


@dataclass
class UnitTable:
    """Units and steps under one mesh and ZeRO level. works: by piece name."""

    works: dict[str, PieceWork]
    zero: int
    links: Links
    precision: Precision
    known: dict[tuple, Unit] = field(default_factory=dict)

    def step(
        self,
        instances: tuple[InstancePlan, ...],
        buckets: tuple[Bucket, ...],
        schedule: Schedule,
        num_microbatches: int,
    ) -> StepModel:
        pp = self.links.mesh.size("pp")
        stages = tuple(
            self.units([i for i in instances if i.stage == s], buckets) for s in range(pp)
        )
        held = [[b for b in buckets if s in b.stages] for s in range(pp)]
        sends = [self.links.transfer_us(u[-1].work.exit_bytes, s) for s, u in enumerate(stages)]
        return StepModel(
            stages,
            schedule,
            self.zero,
            self.zero >= 2,
            num_microbatches,
            tuple(sends),
            tuple(sum(self.optimizer_us(b) for b in found) for found in held),
            tuple(sum(self.refresh_us(b) for b in found) for found in held),
            tuple(sum(self._tied_us(b) for b in found) for found in held),
            self.links.world_us(),
        )

    def units(
        self, instances: Iterable[InstancePlan], buckets: tuple[Bucket, ...]
    ) -> tuple[Unit, ...]:
        """The units of one stage; a bucket that several share is completed by the first."""
        by_name = {b.name: b for b in buckets}
        seen: set[str] = set()
        found = []
        for item in instances:
            mine = [by_name[name] for name in item.buckets]
            fresh = [b for b in mine if b.name not in seen]
            seen.update(item.buckets)
            sizes = tuple((b.numel, _partial_bytes(b), b in fresh) for b in mine)
            key = (item.piece, sizes)
            if key not in self.known:
                self.known[key] = self._unit(self.works[item.piece], mine, fresh)
            found.append(replace(self.known[key], name=item.name))
        return tuple(found)

    def _unit(self, work: PieceWork, mine: list[Bucket], fresh: list[Bucket]) -> Unit:
        """mine: buckets it reads. fresh: those whose gradients its backward completes."""
        links, dp = self.links, self.links.mesh.size("dp")
        hbm = links.cluster.device.hbm_bytes_per_s / 1e6
        whole, owned = sum(map(bucket_bytes, mine)), sum(map(bucket_bytes, fresh))
        wider = self.precision.grad / self.precision.param
        accumulate = (1 + 2 * wider) * whole / hbm  # read both, write the sum
        if self.zero >= 2:  # the buffer is cleared, and what was reduced is added to the shard
            accumulate += wider * (owned + 3 * owned / dp) / hbm
        gather = 0.0
        if self.zero == 3:
            gather = sum(links.axis_us("all_gather", bucket_bytes(b), "dp") for b in mine)
        kind = "all_reduce" if self.zero == 0 else "reduce_scatter"
        reduce = sum(links.axis_us(kind, wider * bucket_bytes(b), "dp") for b in fresh)
        partial = sum(
            links.axis_us("all_reduce", wider * _partial_bytes(b), "tp")
            for b in fresh
            if _partial_bytes(b)
        )
        return Unit("", work, accumulate, gather, reduce, partial, whole, owned)

    def optimizer_us(self, bucket: Bucket) -> float:
        """Memory traffic of the norm, the clip and the update."""
        cuts = self.links.mesh.size("dp") if self.zero else 1
        moved = self.precision.moved * bucket.numel / cuts
        return moved / self.links.cluster.device.hbm_bytes_per_s * 1e6

    def refresh_us(self, bucket: Bucket) -> float:
        """Gathering the updated parameters, where all of them are kept."""
        if self.zero not in (1, 2):
            return 0.0
        return self.links.axis_us("all_gather", bucket_bytes(bucket), "dp")

    def _tied_us(self, bucket: Bucket) -> float:
        if len(bucket.stages) < 2:
            return 0.0
        size = bucket_bytes(bucket) / (self.links.mesh.size("dp") if self.zero else 1)
        return self.links.axis_us("all_reduce", size, "pp")


def bucket_bytes(bucket: Bucket) -> float:
    return bucket.numel * ITEM_BYTES[bucket.dtype]


def _partial_bytes(bucket: Bucket) -> float:
    """Bytes of the leading region whose gradients are summed over tp."""
    later = [e.offset for e in bucket.entries if not e.partial]
    if not any(e.partial for e in bucket.entries):
        return 0.0
    return min(later, default=bucket.numel) * ITEM_BYTES[bucket.dtype]
