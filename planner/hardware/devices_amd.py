"""A node of eight AMD Instinct MI300X, each joined to each other by one Infinity Fabric link.

There is no switch: a group of n has n - 1 links a device, so two devices get a seventh of what
eight get. The curves of the smaller groups say so.
"""

from .cluster import CALL_US, COLLECTIVES, WIRE_SHARE, Cluster, Curve, Device, LinkLevel

GIB = 2**30
_CALL = ("call_us", "assumed: as H200")
_FABRIC_US = 60.0
# Bus bandwidth of an all_reduce of 4 GB over 8 devices was read as 312.9 GB/s, over 2 as 47.7.
_PAIR_BYTES_PER_S = 312.9e9 / 7
_READING = "ml-engineering, network, peer-to-peer bandwidth: all_reduce over 8 and 2 MI300X"
_ANALYSIS = "Ambati et al. 2025, arXiv 2510.27583"
_SYSTEM = "MLPerf inference v4.1, system 8xMI300X_2xEPYC-9374F"


def _fabric() -> tuple[Curve, ...]:
    """Straight lines for groups that use some of a device's links; send_recv takes one."""
    return tuple(
        Curve(name, group, tuple((size, _us(name, group, size)) for size in (2**16, 2**30)))
        for group in range(2, 8)
        for name in COLLECTIVES
    )


def _us(collective: str, group: int, size_bytes: int) -> float:
    links = 1 if collective == "send_recv" else group - 1
    wire_bytes = size_bytes * WIRE_SHARE[collective](group)
    return _FABRIC_US + wire_bytes / (links * _PAIR_BYTES_PER_S) * 1e6


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
        efficiency=0.45,
        attention_flops_per_s=(0.35 * 1307.4e12, 0.25 * 1307.4e12),
        sources=(
            ("matmul_flops_per_s", "data sheet: AMD's for the MI300X, dense matrix rates"),
            ("efficiency", f"published: about 45% of the peak in bf16, f16 and fp8 ({_ANALYSIS})"),
            ("hbm_bytes_per_s", f"published: 81% of the data sheet's 5.3 TB/s ({_ANALYSIS})"),
            ("memory_bytes", "data sheet: 192 GiB (AMD GPU specifications, ROCm documentation)"),
            ("launch_us", "assumed"),
            _CALL,
            ("attention_flops_per_s", "assumed: 0.35 and 0.25 of the data sheet's rate"),
        ),
    ),
    (
        LinkLevel(
            "infinity fabric", _FABRIC_US, 7 * _PAIR_BYTES_PER_S, 8, _fabric(),
            (
                ("alpha_us", "assumed"),
                ("bytes_per_s", f"published: 312.9 GB/s of the data sheet's 7 x 64 ({_READING})"),
                ("curves", f"assumed: n - 1 links a device in a group of n, 44.7 GB/s each; over "
                           f"two 47.7 was read ({_READING})"),
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
