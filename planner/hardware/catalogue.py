"""The catalogue: nodes by name. Each figure's source stands beside it and shows in the coverage."""

from .boards_of_four import A100_BOARD, H100_BOARD, H200_BOARD
from .cluster import Cluster, Device, LinkLevel
from .devices_amd import MI300X
from .devices_pcie import L40S, RTX4090, RTX5090
from .devices_sxm import A100, B200, H100, H200

_ASSUMED = "assumed: to plan the demo and the tests on any machine"

# One rank of a CPU host.
CPU = Cluster(
    "cpu",
    256,
    1,
    Device(
        "CPU rank",
        (("bf16", 10e9), ("f16", 10e9), ("f32", 40e9), ("f64", 20e9)),
        hbm_bytes_per_s=10e9,
        memory_bytes=8 * 2**30,
        launch_us=5.0,
        sources=tuple(
            (name, _ASSUMED)
            for name in ("matmul_flops_per_s", "hbm_bytes_per_s", "memory_bytes", "launch_us")
        ),
        type="cpu",
    ),
    tuple(
        LinkLevel(
            name, alpha_us, 1e9, 256, sources=(("alpha_us", _ASSUMED), ("bytes_per_s", _ASSUMED))
        )
        for name, alpha_us in (("shared memory", 150.0), ("ethernet", 300.0))
    ),
    host_link_bytes_per_s=10e9,
    host_memory_bytes=32 * 2**30,
    sources=tuple(
        (name, _ASSUMED)
        for name in ("devices_per_node", "host_link_bytes_per_s", "host_memory_bytes")
    ),
)

CATALOGUE = {
    cluster.name: cluster
    for cluster in (
        CPU, H200, H100, A100, B200, MI300X, L40S, RTX4090, RTX5090,
        H200_BOARD, H100_BOARD, A100_BOARD,
    )
}  # fmt: skip
