"""Small hypothetical clusters, drawn by their numbers."""

from dataclasses import replace

from meshwright.planner.cluster import Cluster, LinkLevel, parse_cluster


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
