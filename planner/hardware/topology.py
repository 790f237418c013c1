"""What a collective over a mesh axis costs, given where the axis lies on the machine.

Ranks are row-major over the mesh's axes and nodes hold consecutive ranks, so an axis of `group`
ranks with `stride` between neighbours spans group * stride of them. Inside a node the cluster's
curves hold. Across nodes a ring runs through every node once; the members that a node holds share
its network cards, one each, and the inner links bound what they can use (NCCL rings; hierarchical
counting as in Calculon, Isaev et al. 2023). Of a full mesh each of these rings takes other links.
What more nodes take from the bandwidth is the link level's own (`LinkLevel.by_nodes`); what more
ranks add in latency is below.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

from meshwright.ir.mesh import AXIS_OF, DATA, PIPELINE, ROLES, Mesh, reordered

from .cluster import WIRE_SHARE, Cluster, collective_us

# NCCL's tuning table (src/graph/tuning.cc): of each protocol the share of the bandwidth that it
# reaches, and us of one more rank of a ring in a node, and of one more node.
RINGS = {"ll128": (0.92, 1.9, 4.0), "simple": (1.0, 3.4, 9.6)}
# The same of its trees (ll128), which all_reduce may take: us by rank in a node, and by doubling of
# nodes; share of the bandwidth.
TREE = (0.9 * 0.915, 1.2, 8.5)


# The axes that may be outermost; tensor is innermost always, as it needs the fastest links.
OUTER = (AXIS_OF[PIPELINE], AXIS_OF[DATA])


@dataclass(frozen=True)
class Links:
    """Times on one cluster under one mesh, in us; sizes as in cluster.Curve."""

    cluster: Cluster
    mesh: Mesh

    def group_us(self, collective: str, size_bytes: float, *roles: str) -> float:
        """Time over the axes of the roles as one joint group.

        Axes that are not adjacent count as if their ranks were spread evenly over what they span.
        """
        return self.joint_us(collective, size_bytes, self.mesh.names(*roles))

    def joint_us(self, collective: str, size_bytes: float, names: tuple[str, ...]) -> float:
        """Time over axes, major to minor, as one joint group; as `group_us` in all else."""
        group = math.prod(self.mesh.size(name) for name in names)
        if group == 1:
            return 0.0
        span = self.mesh.size(names[0]) * self.mesh.stride(names[0])
        return strided_us(self.cluster, collective, size_bytes, group, span // group)

    def transfer_us(self, size_bytes: float, source: int, target: int) -> float:
        """Return the time from a device of one pp rank to its peer on another; across nodes if any
        pair crosses."""
        if source == target:
            return 0.0
        per_node = self.cluster.devices_per_node
        crosses = _crosses(self.mesh, per_node, source, target)
        return strided_us(self.cluster, "send_recv", size_bytes, 2, per_node if crosses else 1)

    def least_transfer_us(self, size_bytes: float, source: int, target: int) -> float:
        """Whichever of pipeline and data is outermost."""
        return min(links.transfer_us(size_bytes, source, target) for links in self._both)

    def sends_us(
        self, size_bytes: float, ranks: tuple[int, ...], any_order: bool
    ) -> tuple[float, ...]:
        """Return the time from every stage to the next. ranks: of the stages. any_order: the least,
        whichever of pipeline and data is outermost."""
        key = size_bytes, ranks, any_order
        if key not in self._sends:
            transfer = self.least_transfer_us if any_order else self.transfer_us
            hops = list(zip(ranks, ranks[1:], strict=False))
            us = {hop: transfer(size_bytes, *hop) for hop in set(hops)}  # chunks pass ranks again
            self._sends[key] = tuple(us[hop] for hop in hops)
        return self._sends[key]

    @cached_property
    def _sends(self) -> dict[tuple, tuple[float, ...]]:
        return {}

    @cached_property
    def _both(self) -> "tuple[Links, ...]":
        return tuple(Links(self.cluster, reordered(self.mesh, ROLES[outer])) for outer in OUTER)

    def world_us(self) -> float:
        """An all_reduce of a few bytes over every rank."""
        return strided_us(self.cluster, "all_reduce", 16.0, self.mesh.num_devices, 1)


@lru_cache(maxsize=1 << 16)
def _crosses(mesh: Mesh, per_node: int, source: int, target: int) -> bool:
    """Return whether any device of one pp rank and its peer on another are on two nodes."""
    stride = mesh.stride(AXIS_OF[PIPELINE])
    block = mesh.count(PIPELINE) * stride  # blocks lie alike in nodes again after per_node
    starts = range(0, min(mesh.num_devices, block * per_node), block)
    firsts = (start + k for start in starts for k in (0, stride - 1))
    ends = ((k + source * stride, k + target * stride) for k in firsts)
    return any(a // per_node != b // per_node for a, b in ends)


def strided_us(
    cluster: Cluster, collective: str, size_bytes: float, group: int, stride: int
) -> float:
    """Time of a collective over `group` ranks with `stride` between neighbours, in us."""
    if group == 1:
        return 0.0
    per_node = cluster.devices_per_node
    if group * stride <= per_node or cluster.nodes == 1:
        return collective_us(cluster, collective, size_bytes, group)
    members = max(1, min(group, per_node // stride))
    nodes = -(-group // members)
    outer = cluster.level(min(group * stride, cluster.num_devices))
    inner = cluster.levels[0]
    rate = outer.bytes_per_s * outer.share(nodes)
    if members > 1:
        rate = min(rate * members, inner.pair_bytes_per_s * members, inner.bytes_per_s)
    wire_us = size_bytes * WIRE_SHARE[collective](group) / rate * 1e6
    return outer.alpha_us + _hops_us(collective, wire_us, group, nodes, outer.hop_us)


def _hops_us(
    collective: str, wire_us: float, group: int, nodes: int, hop_us: tuple[float, ...]
) -> float:
    """Return the time on the wire with the latency of the hops, by the fastest protocol. hop_us: of
    the links between nodes, as LinkLevel has it."""
    if collective == "send_recv":
        return wire_us
    rounds = 2 if collective == "all_reduce" else 1
    hop, step = hop_us or (0.0, 0.0)
    # A value passes all links of a ring but one, which is within a node where nodes hold several.
    outer_us = (nodes - (group == nodes)) * hop
    times = [
        wire_us / share + rounds * ((group - nodes) * inside + (outer_us or (nodes - 1) * between))
        for share, inside, between in RINGS.values()
    ]
    if collective == "all_reduce":
        share, inside, between = TREE
        depth = (group / nodes - 1) * inside + math.ceil(math.log2(nodes)) * (step or between)
        times.append(wire_us / share + 2 * depth)
    return min(times)
