"""A node of eight AMD Instinct MI300X, each joined to each other by one Infinity Fabric link.

There is no switch: a group of n has n - 1 links a device, so two devices get a seventh of what
eight get.
"""

from .cluster import CALL_US, TILE_DEPTH, Cluster, Device, LinkLevel

GIB = 2**30
_CALL = ("call_us", "assumed: as H200")
_DEPTH = ("tile_depth", "assumed: as H200")
_READING = "ml-engineering, network, peer-to-peer bandwidth: all_reduce over 8 and 2 MI300X"
_ANALYSIS = "Ambati et al. 2025, arXiv 2510.27583"
_SYSTEM = "MLPerf inference v4.1, system 8xMI300X_2xEPYC-9374F"

MI300X = Cluster(
    "mi300x",
    8,
    1,
    Device(
        "AMD Instinct MI300X",
        (
            ("bf16", 1307.4e12), ("f16", 1307.4e12), ("fp8", 2614.9e12), ("f32", 163.4e12),
            ("f64", 163.4e12),
        ),
        hbm_bytes_per_s=0.81 * 5.3e12,
        memory_bytes=192 * GIB,
        launch_us=5.0,
        call_us=CALL_US,
        tile_depth=TILE_DEPTH,
        efficiency=0.45,
        attention_flops_per_s=(0.35 * 1307.4e12, 0.25 * 1307.4e12),
        sources=(
            ("matmul_flops_per_s", "data sheet: AMD's for the MI300X, dense matrix rates"),
            ("efficiency", f"published: about 45% of the peak in bf16, f16 and fp8 ({_ANALYSIS})"),
            ("hbm_bytes_per_s", f"published: 81% of the data sheet's 5.3 TB/s ({_ANALYSIS})"),
            ("memory_bytes", "data sheet: 192 GiB (AMD GPU specifications, ROCm documentation)"),
            ("launch_us", "assumed"),
            _CALL,
            _DEPTH,
            ("attention_flops_per_s", "assumed: 0.35 and 0.25 of the data sheet's rate"),
        ),
    ),
    (
        LinkLevel(
            "infinity fabric", 60.0, 312.9e9, 8, full_mesh=8, sources=(
                ("alpha_us", "assumed"),
                ("bytes_per_s", f"published: 312.9 GB/s of the data sheet's 7 x 64 ({_READING})"),
                ("full_mesh", f"published: 47.7 GB/s over two, about a seventh ({_READING})"),
            ),
        ),
        LinkLevel("ethernet", 60.0, 0.8 * 50e9, 8, sources=(
            ("alpha_us", "assumed"),
            ("bytes_per_s", "assumed: 0.8 of one 400 Gb/s card a device"),
        )),
    ),
    host_link_bytes_per_s=49.2e9,
    host_memory_bytes=1536 * GIB,
    sources=(
        ("devices_per_node", f"published: eight ({_SYSTEM})"),
        ("host_link_bytes_per_s", f"assumed: PCIe 5 x16 ({_SYSTEM}), the share measured on H200"),
        ("host_memory_bytes", f"published: 24 x 64 GB ({_SYSTEM})"),
    ),
)  # fmt: skip
