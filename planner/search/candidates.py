"""The plans that the search compares: every whole combination of decisions, named.

Meshes are factorings of the device count with tp inside a node; micro-batches divide a rank's rows.
A pin restricts its own decision and nothing else.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property

from meshwright.ir.mesh import (
    CONTEXT,
    DATA,
    PIPELINE,
    REPLICA,
    ROLES,
    TENSOR,
    Mesh,
    make_mesh,
)
from meshwright.ir.traced import Traced

from ..budget import BUDGET, SearchBudget
from ..hardware.catalogue import CPU
from ..hardware.cluster import Cluster
from ..hardware.topology import OUTER
from ..pipeline.schedule_table import Listing
from ..pipeline.schedules import GENERATORS, PLAIN, SPLIT, chunks_of, runs
from ..remat.options import CHOSEN
from ..sharding.sub_axes import inner_ranks
from .pins import Pins


@dataclass(frozen=True, order=True)
class Candidate:
    """One combination. num_microbatches follows from the global batch; recompute is a rule, or
    `chosen`: the option of every instance is found within the combination (fitting.py)."""

    pp: int
    dp: int
    tp: int
    micro_batch: int
    num_microbatches: int
    zero: int
    recompute: str
    schedule: str
    chunks: int = 1  # stages of a rank
    outer: str = OUTER[0]  # the axis whose neighbours are the farthest apart
    rep: int = 1
    cp: int = 1
    inner: int = 1  # ranks of the tensor axis's inner part

    @property
    def num_stages(self) -> int:
        return self.pp * self.chunks

    @cached_property
    def listing(self) -> Listing:
        """Name and sizes of the candidate's schedule."""
        return Listing(self.schedule, self.pp, self.num_microbatches, self.chunks)

    @cached_property
    def mesh(self) -> Mesh:
        return _mesh_of(self.pp, self.rep, self.dp, self.cp, self.tp, self.outer, self.inner)

    def __str__(self) -> str:
        schedule = f" {self.schedule}" if self.pp > 1 else ""
        schedule += f" chunks={self.chunks}" if self.schedule == "interleaved" else ""
        outer = "" if self.outer == OUTER[0] else f" outer={self.outer}"
        return (
            f"{self.mesh_text} micro_batch={self.micro_batch} "
            f"zero={self.zero} recompute={self.recompute}{schedule}{outer}"
        )

    @cached_property
    def compute(self) -> Mesh:
        """The axes that place values."""
        return self.mesh.compute

    @property
    def mesh_text(self) -> str:
        """The axes in canonical order, whichever is outermost."""
        return str(replace(self, outer=OUTER[0]).mesh)

    @cached_property
    def unsplit(self) -> "Candidate":
        """Return the candidate with its backward in one, itself where it is."""
        return self if self.schedule not in SPLIT else replace(self, schedule=PLAIN[0], chunks=1)

    def reordered(self) -> "Candidate | None":
        """Return the candidate with the other of pipeline and data outermost.

        None where either axis has a single rank.
        """
        if 1 in (self.pp, self.rep * self.dp):
            return None
        return replace(self, outer=next(axis for axis in OUTER if axis != self.outer))


@cache
def _mesh_of(pp: int, rep: int, dp: int, cp: int, tp: int, outer: str, inner: int) -> Mesh:
    """Return the mesh of a candidate, one for all that have it."""
    sizes = {PIPELINE: pp, REPLICA: rep, DATA: dp, CONTEXT: cp, TENSOR: tp}
    return make_mesh(sizes, ROLES[outer], inner)


def candidates_of(
    traced: Traced,
    cluster: Cluster,
    global_batch: int,
    pins: Pins,
    budget: SearchBudget = BUDGET,
    split: int = 1,
) -> list[Candidate]:
    """Return all combinations for a model, whose segments and KV heads bound them."""
    inner_of = cache(lambda tp: inner_ranks(traced.joints.values(), tp))
    count = len(traced.segmented.instances)
    return list(candidates(cluster, global_batch, pins, count, budget, inner_of, split))


def candidates(
    cluster: Cluster,
    global_batch: int,
    pins: Pins,
    num_instances: int,
    budget: SearchBudget = BUDGET,
    inner_of: Callable[[int], int] = lambda tp: 1,
    split: int = 1,
) -> Iterator[Candidate]:
    """All combinations that the pins leave, in no order that matters.

    inner_of: by the number of tp ranks, how many of them form the tensor axis's inner part.
    split: ranks that may cut the sequence and features of a row where no rank would be idle.
    """
    orders = outer_axes(cluster, pins, budget)
    for pp, rep, dp, cp, tp in meshes(cluster, global_batch, pins, num_instances, split):
        rows = global_batch // (rep * dp)
        for micro_batch in _micro_batches(rows, cp, pins, budget):
            for zero in _zeros(rep, dp * cp, pins):
                m, rule = rows // micro_batch, pins.recompute or CHOSEN
                for schedule, chunks in _schedules(pp, m, pins, num_instances, budget):
                    given = pp, dp, tp, micro_batch, m, zero, rule, schedule, chunks
                    for outer in orders if pp > 1 and rep * dp > 1 else orders[:1]:
                        yield Candidate(*given, outer, rep, cp, inner_of(tp))


def outer_axes(cluster: Cluster, pins: Pins, budget: SearchBudget = BUDGET) -> tuple[str, ...]:
    """Return the axes that are outermost in candidates: both where links between nodes are so slow
    that plans of one order say little of the other."""
    if pins.outer is not None:
        return (pins.outer,)
    inner, *others = (level.bytes_per_s for level in cluster.levels)
    slow = cluster.nodes > 1 and inner > budget.slow_links * min(others, default=inner)
    return OUTER if slow else OUTER[:1]


def meshes(
    cluster: Cluster, global_batch: int, pins: Pins, num_instances: int, split: int = 1
) -> Iterator[tuple[int, int, int, int, int]]:
    """(pp, rep, dp, cp, tp): tp divides a node, rep x dp the batch, no stage is empty."""
    split = min(split, cluster.devices_per_node)
    total = cluster.num_devices
    for tp in divisors(cluster.devices_per_node) if pins.tp is None else [pins.tp]:
        for pp in divisors(total // tp) if total % tp == 0 else []:
            if pp > num_instances or pins.pp not in (None, pp):
                continue
            rest = total // tp // pp
            for cp in _contexts(rest, global_batch, pins, split // tp):
                for rep in _replicas(rest // cp, cp * tp, cluster, pins):
                    dp = rest // cp // rep
                    if pins.dp in (None, dp) and global_batch % (rep * dp) == 0:
                        yield pp, rep, dp, cp, tp


def _contexts(rest: int, global_batch: int, pins: Pins, most: int) -> list[int]:
    """Ranks that cut the sequence: 1, as many as the rows of the batch leave idle, and up to
    `most`; several where their order is pinned."""
    if pins.cp is not None:
        return [pins.cp] if rest % pins.cp == 0 else []
    if pins.cp_order is not None:
        return [cp for cp in divisors(rest) if cp > 1]
    return [cp for cp in divisors(rest) if cp <= max(1, most) or rest // cp == global_batch]


def _replicas(batch: int, inner: int, cluster: Cluster, pins: Pins) -> list[int]:
    """Outer copies of sharded storage: 1, and as many as keep a copy inside a node.

    batch: ranks that cut the batch. inner: ranks inside of them.
    """
    if pins.rep is not None:
        return [pins.rep] if batch % pins.rep == 0 else []
    inside = cluster.devices_per_node // inner
    if cluster.nodes == 1 or not 1 < inside < batch or batch % inside:
        return [1]
    return [1, batch // inside]


def divisors(number: int) -> list[int]:
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _micro_batches(rows: int, cp: int, pins: Pins, budget: SearchBudget) -> list[int]:
    """Rows of a micro-batch to try. Where `cp` ranks share two rows, fewer of them with a row each
    do the same work and exchange less; these are candidates too, unless cp or dp is pinned."""
    if pins.micro_batch is not None:
        return [pins.micro_batch] if rows % pins.micro_batch == 0 else []
    found = [n for n in divisors(rows) if n <= budget.max_micro_batch]
    if (pins.cp, pins.dp, pins.cp_order) != (None, None, None):
        return found
    return [n for n in found if math.gcd(n, cp) == 1]


def _zeros(rep: int, storage: int, pins: Pins) -> tuple[int, ...]:
    """ZeRO levels to try; copies of storage that is not sharded would be data ranks."""
    levels = (0, 1, 2, 3) if storage > 1 else (0,)
    levels = levels if pins.zero is None else (pins.zero,)
    return tuple(z for z in levels if rep == 1 or (z > 0 and storage > 1))


def may_offload(cluster: Cluster, pins: Pins) -> bool:
    """Return whether values may wait in the host's memory: where the search decides what is kept,
    and devices have a memory of their own. A pin decides otherwise."""
    if pins.offload is not None:
        return pins.offload == "on"
    return pins.recompute is None and cluster.device.name != CPU.device.name


def _schedules(
    pp: int, m: int, pins: Pins, num_instances: int, budget: SearchBudget
) -> list[tuple[str, int]]:
    """(name, chunks) of the schedules that run `m` micro-batches on `pp` ranks under the pins.

    Several stages a rank are left out where they have few units: a layer is two, of different
    times, so that such stages are uneven.
    """
    names = GENERATORS if pp > 1 else GENERATORS[:1]
    if pins.schedule is not None:
        names = (pins.schedule,)
    wanted = pins.num_stages
    found = []
    for name in names:
        if not runs(name, pp, m):
            continue
        for chunks in _chunks(name, pp, pins, wanted):
            few = chunks * pp * budget.min_units > num_instances
            if chunks > 1 and few and not (pins.schedule or pins.chunks or wanted):
                continue
            if pp * chunks <= num_instances and wanted in (None, pp * chunks):
                found.append((name, chunks))
    return found


def _chunks(name: str, pp: int, pins: Pins, wanted: int | None) -> tuple[int, ...]:
    """Stages of a rank to try; a pin that only interleaved can have skips the other schedules."""
    if name != "interleaved":
        chunks = chunks_of(name, None)
        return (chunks,) if pins.chunks in (None, chunks) else ()
    if pins.chunks is not None:
        return (pins.chunks,)
    return (max(2, wanted // pp),) if wanted else (2, 4)
