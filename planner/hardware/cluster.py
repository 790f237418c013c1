"""Clusters: what the planner knows about devices and links, as frozen data.

A cluster is `nodes` equal nodes of `devices_per_node` equal devices. Link levels go from the
innermost outwards; a group of ranks runs on the first level that spans it. A level may carry
measured curves; where it has none, time is alpha + bytes over the wire / beta.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from meshwright.ir.errors import PlanError
from meshwright.ir.ops.implementation import DEVICES

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
# How a figure is known: every source begins with one of these, a colon and where it is from; an
# assumption may say no more.
KNOWN_BY = ("measured", "data sheet", "published", "assumed")
# (figure's name, where it is from); figures without one were given by the user.
Sources = tuple[tuple[str, str], ...]


class ClusterError(PlanError):
    """A cluster that is unknown, unreadable or impossible."""


TILES = (64, 128)  # head sizes that the vendors' kernels are made for
TRITON = "triton"  # the backend of attention that is ours, and has readings of its own
# (forward, backward) of a kernel of ours over the vendor's own on the same attention, heads of 128
# and 64 on an H200 (benchmarks/README.md, 2026-11-23).
UNREAD_SHARE = (0.65, 0.6)

# Host's time of one compiled function on the CPUs of H200s: 0.59 s a step of 1,664 of them (a Llama
# of 125M, 32 micro-batches of one row of 512), less 40 us for each op that has become cheaper since
# (2026-11-23; 0.56 s of 1,600 for GPT-2 medium; runs differ by 30%).
CALL_US = 290.0
# Of the least time of a kernel, what one takes in a recording: kernels follow each other there
# within 0.1 us. Of 11 steps of short micro-batches and the kernel tables of three (H200,
# 2026-11-30, benchmarks/README.md).
RECORDED = 0.63


# The contracted dimension K of a matmul at which the rates of a device hold.
READ_DEPTH = 5000.0
# A matmul of a GPU takes the time that its flops would take with K + TILE_DEPTH in place of K: each
# tile has a fixed cost of loading and storing. Fitted to 442 products: the root mean square error
# is 6.4% with it and 9.8% without; wave quantisation does not lower it further (H200, 2026-12-01,
# benchmarks/README.md).
TILE_DEPTH = 131.0
# The share of attention in the time of matmuls and attention together at which the rates hold.
USUAL_ATTENTION = 0.2
# Matmuls run faster by CLOCK_GAIN times what attention's share is above USUAL_ATTENTION: attention
# draws less power, and power limits the clock. Fitted to 52 steps of 34 programs (H200, 2026-11-30
# and 2026-12-01, benchmarks/README.md).
CLOCK_GAIN = 0.19


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator (or one CPU rank).

    matmul_flops_per_s: (dtype, rate) per element type, already at the efficiency below where that
    is 1. efficiency: the share of those rates that large matmuls reach; 1 when they were measured.
    attention_flops_per_s: (forward, backward) of the vendor's fused kernel; None: the matmul rate.
    attention_readings: the same by backend, head size and positions, where they were measured.
    sources: by field; a rate of one element type may have its own, by the name of the type.
    type: as torch names it, cuda or cpu. call_us: of the host's time, to issue one compiled
    function of a segment; 0 where the host is the device. context_bytes, communicator_bytes: of its
    memory, what the driver's context and each communicator hold; 0 where that is not known.
    tile_depth: see TILE_DEPTH; 0 where every contracted dimension reaches the same rate.
    clock_gain: see CLOCK_GAIN; 0 where power does not limit the clock. clock: the clock of matmuls
    in the step that is priced, over the clock at which their rates hold.
    """

    name: str
    matmul_flops_per_s: tuple[tuple[str, float], ...]
    hbm_bytes_per_s: float
    memory_bytes: int
    launch_us: float
    efficiency: float = 1.0
    attention_flops_per_s: tuple[float, float] | None = None
    attention_readings: tuple["AttentionReading", ...] = ()
    sources: Sources = ()
    type: str = DEVICES[0]
    call_us: float = 0.0
    context_bytes: int = 0
    communicator_bytes: int = 0
    tile_depth: float = 0.0
    clock_gain: float = 0.0
    clock: float = 1.0

    def at_clock(self, attention_share: float) -> "Device":
        """Return the device with the clock of a step. attention_share: of the time of matmuls and
        attention together, what attention takes."""
        clock = 1.0 + self.clock_gain * (attention_share - USUAL_ATTENTION)
        return replace(self, clock=round(clock, 4))

    def depth_share(self, contracted: float) -> float:
        """Return the rate of a matmul with this contracted dimension, as a share of the rate of its
        dtype."""
        depth = self.tile_depth
        return (1.0 + depth / READ_DEPTH) / (1.0 + depth / contracted)

    def matmul_rate(self, dtype: str) -> float:
        """Flops per second reached in `dtype`; a type without a rate runs at the slowest one."""
        rates = dict(self.matmul_flops_per_s)
        return self.efficiency * rates.get(dtype, min(rates.values()))

    def attention_rate(
        self, head_dim: int, positions: float, backend: str = ""
    ) -> tuple[float, float] | None:
        """(forward, backward) flops per second of a backend, "" for the vendor's own: of the next
        larger head size read, or of TILES, of which a GPU fills a part with a smaller head, between
        its readings linear in positions, beyond them the last one's. A backend without readings
        reaches UNREAD_SHARE of the vendor's."""
        readings = [r for r in self.attention_readings if r.backend == backend]
        if backend and not readings:
            rates = self.attention_rate(head_dim, positions)
            return rates and (rates[0] * UNREAD_SHARE[0], rates[1] * UNREAD_SHARE[1])
        sizes = {r.head_dim for r in readings} or set(TILES)
        tile = min((size for size in sizes if size >= head_dim), default=max(sizes))
        filled = min(1.0, head_dim / tile) if self.type == "cuda" else 1.0
        if not readings:
            rates = self.attention_flops_per_s
            return rates and (filled * rates[0], filled * rates[1])
        found = sorted(
            (r.positions, filled * r.forward, filled * r.backward)
            for r in readings
            if r.head_dim == tile
        )
        after = next((k for k, r in enumerate(found) if r[0] >= positions), len(found))
        if after in (0, len(found)):
            return found[min(after, len(found) - 1)][1:]
        (x0, *low), (x1, *high) = found[after - 1], found[after]
        share = (positions - x0) / (x1 - x0)
        forward, backward = (a + share * (b - a) for a, b in zip(low, high, strict=True))
        return forward, backward


@dataclass(frozen=True, slots=True)
class AttentionReading:
    """Flops per second of fused causal attention, for heads of one size, at one length.

    positions: of a row; where a window narrows it, of the row whose queries see as many keys on
    average. backend: as `implementations` of the op names it, "" for the vendor's own kernel.
    """

    head_dim: int
    positions: int
    forward: float
    backward: float
    backend: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """Readings of one collective over `group` ranks: (bytes, us) by growing size.

    Bytes count the largest buffer on a rank: gathered output, input of a reduction, and the local
    buffer of all_to_all and send_recv.
    """

    collective: str
    group: int
    points: tuple[tuple[int, float], ...]

    def time_us(self, size_bytes: float) -> float:
        """Linear between readings, flat below the first, the last slope above the last."""
        points = self.points
        if size_bytes <= points[0][0] or len(points) == 1:
            return points[0][1]
        after = next((k for k, p in enumerate(points) if p[0] >= size_bytes), len(points) - 1)
        (x0, y0), (x1, y1) = points[after - 1], points[after]
        return y0 + (y1 - y0) * (size_bytes - x0) / (x1 - x0)


@dataclass(frozen=True, slots=True)
class LinkLevel:
    """Links that join groups of up to `span` devices; bytes_per_s is one direction, per device.

    by_nodes: (nodes, share of bytes_per_s that a ring over so many reaches) by growing nodes; none:
    1 for all. hop_us: latency of a link between nodes in a ring, and of one more doubling of the
    nodes of a tree, which an all_reduce pays twice; none: as NCCL counts it (topology.py).
    full_mesh: devices of a node that are joined pair by pair without a switch, each pair by an
    equal share of bytes_per_s; 0: a switch, by which any two have all of it.
    """

    name: str
    alpha_us: float
    bytes_per_s: float
    span: int
    curves: tuple[Curve, ...] = ()
    sources: Sources = ()
    by_nodes: tuple[tuple[int, float], ...] = ()
    full_mesh: int = 0
    hop_us: tuple[float, ...] = ()

    @property
    def pair_bytes_per_s(self) -> float:
        """Bytes a second from one device to one other."""
        return self.bytes_per_s / (self.full_mesh - 1) if self.full_mesh else self.bytes_per_s

    def group_bytes_per_s(self, group: int) -> float:
        """Bytes a second and device inside a group: of a full mesh the links to its other members.

        Rings in every order of the members use all of these links alike; nothing is relayed by
        devices outside of the group.
        """
        return self.pair_bytes_per_s * (group - 1) if self.full_mesh else self.bytes_per_s

    def share(self, nodes: int) -> float:
        """Share of the bandwidth over so many nodes, geometric between readings and beyond them."""
        points = self.by_nodes
        if len(points) < 2 or nodes <= points[0][0]:
            return points[0][1] if points else 1.0
        last = len(points) - 1
        after = next((k for k, point in enumerate(points) if point[0] >= nodes), last)
        (n0, low), (n1, high) = points[after - 1], points[after]
        return low * (high / low) ** (math.log(nodes / n0) / math.log(n1 / n0))

    def curve(self, collective: str, group: int) -> Curve | None:
        found = (c for c in self.curves if (c.collective, c.group) == (collective, group))
        return next(found, None)


# Measured on 8 H200, 2026-11-20: 20 matmuls of 8192^3 beside 4 all_gathers of 512 MiB took longer
# by 0.40, 0.31 and 0.43 of the gathers' own time on 2, 4 and 8 ranks.
OVERLAP_PRICE = 0.38
OVERLAP_SOURCE = "assumed: as measured on H200s, 0.31 to 0.43"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal devices in equal nodes; the host link is one direction, per device.

    overlap_price: the share of the time of collectives that compute beside them takes longer by.
    """

    name: str
    devices_per_node: int
    nodes: int
    device: Device
    levels: tuple[LinkLevel, ...]
    host_link_bytes_per_s: float
    host_memory_bytes: int
    sources: Sources = ()
    overlap_price: float = OVERLAP_PRICE

    @property
    def num_devices(self) -> int:
        return self.devices_per_node * self.nodes

    @property
    def rates(self) -> "Cluster":
        """Return what times follow from: the cluster without names and sizes of memory."""
        device = replace(
            self.device, name="", memory_bytes=0, context_bytes=0, communicator_bytes=0
        )
        return replace(self, name="", device=device, host_memory_bytes=0)

    def issued(self, recorded: bool) -> "Cluster":
        """Return the cluster as functions see it: of recorded ones none takes the host's time, and
        their kernels follow each other closely."""
        if not recorded:
            return self
        launch_us = RECORDED * self.device.launch_us
        return replace(self, device=replace(self.device, call_us=0.0, launch_us=launch_us))

    def level(self, group: int) -> LinkLevel:
        """The innermost level that spans `group` devices."""
        spanning = (level for level in self.levels if level.span >= group)
        return next(spanning, self.levels[-1])


def collective_us(cluster: Cluster, collective: str, size_bytes: float, group: int) -> float:
    """Time of one collective over `group` neighbouring ranks, in us.

    size_bytes: the largest buffer on a rank (see Curve). Measured where the level has a curve of
    this group, else alpha + bytes on the wire / beta; ring factors as in NCCL's bus bandwidth.
    """
    if group == 1:
        return 0.0
    level = cluster.level(group)
    curve = level.curve(collective, group)
    if curve is not None:
        return curve.time_us(size_bytes)
    wire = size_bytes * WIRE_SHARE[collective](group)
    rate = level.group_bytes_per_s(2 if collective == "send_recv" else group)
    return level.alpha_us + wire / rate * 1e6


WIRE_SHARE: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "send_recv": lambda n: 1.0,
    "broadcast": lambda n: 1.0,
}
