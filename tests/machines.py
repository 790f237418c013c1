"""Small hypothetical clusters, drawn by their numbers."""

from dataclasses import replace

from meshwright.planner.hardware.cluster import Cluster, LinkLevel
from meshwright.planner.hardware.cluster_file import parse_cluster


def machine(devices: int, memory_bytes: float, flops: float, link: float, launch: float) -> Cluster:
    """flops, link: of a device and of a link, in 1/s. launch: us."""
    cluster = parse_cluster(f"cpu:{devices}")
    device = replace(
        cluster.device,
        memory_bytes=memory_bytes,
        matmul_flops_per_s=(("bf16", flops), ("f32", flops)),
        launch_us=launch,
    )
    return replace(cluster, device=device, levels=(LinkLevel("link", 5.0, link, devices),))


def in_nodes(cluster: Cluster, nodes: int, slower: float) -> Cluster:
    """The same devices in several nodes; between those links are `slower` times slower."""
    (inner,) = cluster.levels
    each = cluster.num_devices // nodes
    outer = LinkLevel("network", 10.0, inner.bytes_per_s / slower, cluster.num_devices)
    levels = replace(inner, span=each), outer
    return replace(cluster, nodes=nodes, devices_per_node=each, levels=levels)
