"""Memory of one rank at every position of forward and backward, by kind.

A stage holds its parameters, gradients and optimizer state for good. Beside them live, at a unit k
of micro-batch j: what the other micro-batches in flight kept, what this one kept up to k, what k's
function has alive, and the gathered and reduced buckets around k. The number in flight is the only
thing a schedule changes, so the peak is the largest over units at the largest number in flight.
"""

from dataclasses import dataclass

from meshwright.ir.dtypes import ITEM_BYTES
from meshwright.ir.plan import Plan
from meshwright.ir.sizes import evaluate, num_elements

from .cluster import Cluster
from .schedules import in_flight
from .step import Precision, StepModel, Unit, precision_of

# What a plan may not use of a device: the driver's context, communicators' buffers, and blocks the
# allocator cannot reuse. Assumed; plain runs on an H200 were within 2 GiB of torch's own peak.
RESERVED_SHARE = 0.05


def usable_bytes(cluster: Cluster) -> float:
    """Memory of one device that a plan may count on."""
    return (1 - RESERVED_SHARE) * cluster.device.memory_bytes


@dataclass(frozen=True)
class Peak:
    """The fullest moment of a stage: total and parts in bytes, and the unit it happens at."""

    bytes_by_kind: tuple[tuple[str, float], ...]
    where: str

    @property
    def total_bytes(self) -> float:
        return sum(size for _, size in self.bytes_by_kind)


@dataclass(frozen=True)
class Storage:
    """Bytes of a stage's buckets, and how the ZeRO level cuts them over dp."""

    bucket_bytes: float
    largest_bytes: float
    dp: int
    zero: int
    precision: Precision

    def by_kind(self) -> dict[str, float]:
        cut = [1 if self.zero < level else self.dp for level in (3, 2, 1)]
        wide = self.precision.grad / self.precision.param
        found = {
            "parameters": self.bucket_bytes / cut[0],
            "gradients": self.bucket_bytes * wide / cut[1],
            "optimizer": self.bucket_bytes * self.precision.state / self.precision.param / cut[2],
        }
        if self.dp > 1 and self.zero == 3:
            found["gathered parameters"] = 2 * self.largest_bytes
        if self.zero >= 2:
            found["gradient buffers"] = 2 * wide * self.largest_bytes
        return found

    @property
    def total_bytes(self) -> float:
        return sum(self.by_kind().values())


@dataclass
class Filling:
    """A stage as units are added to it in order, and its peak so far.

    held: micro-batches in flight. context: bytes given to every unit.
    """

    dp: int
    zero: int
    precision: Precision
    held: int
    context: float
    bucket_bytes: float = 0.0
    largest_bytes: float = 0.0
    kept_bytes: float = 0.0
    live_bytes: float = 0.0  # at the peak: of the micro-batch that is running
    passing_bytes: float = 0.0  # at the peak: of the function that is running
    where: str = ""

    def add(self, unit: Unit) -> None:
        work = unit.work
        for name, live, passing in (
            ("forward", self.kept_bytes + work.entry_bytes, work.forward.peak_bytes),
            ("backward", self.kept_bytes + work.kept_bytes, work.backward.peak_bytes),
        ):
            if live + passing > self.live_bytes + self.passing_bytes or not self.where:
                self.live_bytes, self.passing_bytes = live, passing
                self.where = f"{name} of {unit.name}"
        self.kept_bytes += work.kept_bytes
        self.bucket_bytes += unit.owned_bytes
        self.largest_bytes = max(self.largest_bytes, unit.bucket_bytes)

    @property
    def total_bytes(self) -> float:
        storage = Storage(self.bucket_bytes, self.largest_bytes, self.dp, self.zero, self.precision)
        fixed = storage.total_bytes
        running = self.live_bytes + self.passing_bytes
        return fixed + (self.held - 1) * self.kept_bytes + running + self.context


def stage_peak(units: tuple[Unit, ...], storage: Storage, held: int, context: float) -> Peak:
    """The peak of a stage that holds `held` micro-batches at once; context: bytes given to all."""
    filled = Filling(storage.dp, storage.zero, storage.precision, held, context)
    for unit in units:
        filled.add(unit)
    kinds = storage.by_kind() | {
        "activations": (held - 1) * filled.kept_bytes + filled.live_bytes,
        "temporaries": filled.passing_bytes,
        "context and data": context,
    }
    return Peak(tuple(kinds.items()), filled.where)


def plan_peaks(plan: Plan, model: StepModel) -> tuple[Peak, ...]:
    """The peak of every stage of a plan; model: the plan on any cluster, bytes know no rates."""
    context = context_bytes(plan)
    return tuple(
        stage_peak(units, storage_of(plan, stage), in_flight(plan.schedule[stage]), context)
        for stage, units in enumerate(model.stages)
    )


def storage_of(plan: Plan, stage: int) -> Storage:
    sizes = [b.numel * ITEM_BYTES[b.dtype] for b in plan.buckets if stage in b.stages]
    precision = precision_of(plan.dtype, plan.precision)
    dp = plan.mesh.size("dp")
    return Storage(sum(sizes), max(sizes, default=0), dp, plan.zero, precision)


def context_bytes(plan: Plan) -> float:
    """Values given to every unit: rotary tables and the like, and a step's tokens and labels."""
    values = plan.context.values
    given = sum(
        evaluate(num_elements(values[n].shape), plan.sizes) * ITEM_BYTES[values[n].dtype]
        for n in plan.context.outputs
    )
    rows = plan.micro_batch * plan.num_microbatches
    return given + 2 * 8 * rows * plan.seq
