"""A plan as the simulator sees it: per stage the units it runs, what they cost and what they hold.

A *unit* is a segment instance on its stage: one piece, its buckets, and the collectives that the
ZeRO level makes of them. Built from the plan and the cluster alone.
"""

from dataclasses import dataclass

from meshwright.ir.dtypes import ITEM_BYTES
from meshwright.ir.plan import Bucket, Plan
from meshwright.ir.schedule import Schedule

from .cluster import Cluster
from .cost import Costs
from .links import Links
from .work import PieceWork, WorkTable

OPTIMIZER_MOMENTS = 2  # AdamW keeps two tensors of a parameter's size
# Passes over a rank's shard in one step: norm reads grad; clipping reads and writes it; AdamW reads
# param, grad and two moments and writes three; clearing writes grad (runtime/optimizer.py).
OPTIMIZER_PASSES = 1 + 2 + 7 + 1
# Adding a piece's gradients into the bucket: read both, write one.
ACCUMULATE_PASSES = 3


@dataclass(frozen=True)
class Unit:
    """One instance. Times in us, sizes in bytes of one rank.

    gather_us: parameters before use (ZeRO 3). reduce_us: gradients over dp, when this instance
    completes them. partial_us: gradients over tp, blocking. bucket_bytes: its parameters, whole.
    """

    name: str
    work: PieceWork
    accumulate_us: float
    gather_us: float
    reduce_us: float
    partial_us: float
    bucket_bytes: float


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
    pieces = {p.name: table.of(p.graph, p.placements, p.saved) for p in plan.pieces}
    links = Links(cluster, plan.mesh)
    buckets = {b.name: b for b in plan.buckets}
    stages = []
    for stage in range(plan.num_stages):
        seen: set[str] = set()
        units = []
        for item in (i for i in plan.instances if i.stage == stage):
            mine = [buckets[name] for name in item.buckets]
            fresh = [b for b in mine if b.name not in seen]
            seen.update(item.buckets)
            units.append(_unit(item.name, pieces[item.piece], mine, fresh, plan, links))
        stages.append(tuple(units))
    held = [[b for b in plan.buckets if s in b.stages] for s in range(plan.num_stages)]
    return StepModel(
        tuple(stages),
        plan.schedule,
        plan.zero,
        plan.zero >= 2,
        plan.num_microbatches,
        tuple(links.transfer_us(u[-1].work.exit_bytes, s) for s, u in enumerate(stages)),
        tuple(sum(_optimizer_us(b, plan, links) for b in found) for found in held),
        tuple(sum(_refresh_us(b, plan, links) for b in found) for found in held),
        tuple(sum(_tied_us(b, plan, links) for b in found) for found in held),
        links.world_us(),
    )


def _unit(
    name: str, work: PieceWork, mine: list[Bucket], fresh: list[Bucket], plan: Plan, links: Links
) -> Unit:
    """mine: buckets it reads. fresh: those whose gradients its backward completes."""
    hbm = links.cluster.device.hbm_bytes_per_s / 1e6
    whole = sum(_bytes(b) for b in mine)
    owned = sum(_bytes(b) for b in fresh)
    dp, zero = plan.mesh.size("dp"), plan.zero
    gather = sum(links.axis_us("all_gather", _bytes(b), "dp") for b in mine) if zero == 3 else 0.0
    kind = "all_reduce" if zero == 0 else "reduce_scatter"
    reduce = sum(links.axis_us(kind, _bytes(b), "dp") for b in fresh)
    partial = sum(links.axis_us("all_reduce", _partial_bytes(b), "tp") for b in fresh)
    accumulate = ACCUMULATE_PASSES * whole / hbm
    if zero >= 2:  # the buffer is cleared, and what was reduced is added to the shard
        accumulate += owned / hbm + ACCUMULATE_PASSES * owned / dp / hbm
    return Unit(name, work, accumulate, gather, reduce, partial, whole)


def _bytes(bucket: Bucket) -> float:
    return bucket.numel * ITEM_BYTES[bucket.dtype]


def _partial_bytes(bucket: Bucket) -> float:
    """Bytes of the leading region whose gradients are summed over tp."""
    later = [e.offset for e in bucket.entries if not e.partial]
    if not any(e.partial for e in bucket.entries):
        return 0.0
    return min(later, default=bucket.numel) * ITEM_BYTES[bucket.dtype]


def _optimizer_us(bucket: Bucket, plan: Plan, links: Links) -> float:
    cuts = plan.mesh.size("dp") if plan.zero else 1
    return OPTIMIZER_PASSES * _bytes(bucket) / cuts / links.cluster.device.hbm_bytes_per_s * 1e6


def _refresh_us(bucket: Bucket, plan: Plan, links: Links) -> float:
    if plan.zero not in (1, 2):
        return 0.0
    return links.axis_us("all_gather", _bytes(bucket), "dp")


def _tied_us(bucket: Bucket, plan: Plan, links: Links) -> float:
    if len(bucket.stages) < 2:
        return 0.0
    size = _bytes(bucket) / (plan.mesh.size("dp") if plan.zero else 1)
    return links.axis_us("all_reduce", size, "pp")
