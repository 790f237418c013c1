"""Memory of a device and of its host that a plan may use, and what the rest is for."""

import math

from meshwright.ir.mesh import COMPUTE, PIPELINE, REDUCED, REPLICA, STORAGE, TENSOR, Mesh

from .cluster import Cluster

# What a plan may not use of a device. Read where an H200 ran out of memory (2026-11-21): 1.4% for
# the driver's context and communicators, 2.8% in blocks that the allocator could not reuse, and 3%
# that predictions fall short by at micro-batches of many rows; rounded up, as a plan that fills
# memory to the last byte and dies is worth less than one a little slower.
RESERVED_SHARE = 0.09
# Of that, what is for blocks and predictions; the rest may be more where a probe has read it.
FRAGMENT_SHARE = 0.058
MOST_COMMUNICATORS = 4
# Of a host's memory, what offloaded values may take; the rest is for the system, the data that it
# keeps of files and a checkpoint on its way to disk.
HOST_SHARE = 0.6


def usable_bytes(cluster: Cluster) -> float:
    """Memory of one device that a plan may count on."""
    return cluster.device.memory_bytes - reserved_bytes(cluster)


def reserved_bytes(cluster: Cluster) -> float:
    """Memory of one device that no plan may use: RESERVED_SHARE, or more where the driver's context
    and MOST_COMMUNICATORS are known to leave less than FRAGMENT_SHARE of that."""
    device = cluster.device
    links = MOST_COMMUNICATORS if cluster.num_devices > 1 else 0
    unseen = device.context_bytes + links * device.communicator_bytes
    share = max(RESERVED_SHARE, FRAGMENT_SHARE + unseen / device.memory_bytes)
    return share * device.memory_bytes


def usable_host_bytes(cluster: Cluster) -> float:
    """Memory of the host that one device may offload to."""
    return HOST_SHARE * cluster.host_memory_bytes / cluster.devices_per_node


def communicators(mesh: Mesh) -> int:
    """Return the communicators of a rank: of all ranks, of each axis and of the roles that a
    program reduces or gathers over; with stages two more, for what goes to and fro."""
    if mesh.num_devices == 1:
        return 0
    roles = (PIPELINE,), (REPLICA,), STORAGE, REDUCED, COMPUTE, (TENSOR,)
    alone = [(name,) for name, _ in mesh.axes]
    along = dict.fromkeys([*alone, *(mesh.names(*together) for together in roles)])
    made = sum(math.prod(map(mesh.size, names)) > 1 for names in along)
    return 1 + made + 2 * (mesh.count(PIPELINE) > 1)
