"""Nodes of eight NVIDIA cards on PCIe, without NVLink.

The GeForce cards run f16, bf16 and fp8 at half rate where sums are kept in float32, as training
keeps them: those are the rates here. They are sold one by one, so nodes are assumed.
"""

from .cluster import CALL_US, TILE_DEPTH, Cluster, Device, LinkLevel, Sources

GIB = 2**30
_CALL = ("call_us", "assumed: as H200")
_DEPTH = ("tile_depth", "assumed: as H200")
_LAUNCH = ("launch_us", "assumed: as H200")
_ADA = "NVIDIA Ada GPU architecture whitepaper"
_BLACKWELL = "NVIDIA RTX Blackwell GPU architecture whitepaper"


def _node(link: str) -> Sources:
    return (
        ("devices_per_node", "assumed: eight"),
        ("host_link_bytes_per_s", f"assumed: 0.8 of {link} one way"),
        ("host_memory_bytes", "assumed: a workstation or server of this class"),
    )


def _assumed(rate: str) -> Sources:
    return (("alpha_us", "assumed"), ("bytes_per_s", f"assumed: {rate}"))


L40S = Cluster(
    "l40s",
    8,
    1,
    Device(
        "NVIDIA L40S",
        (("bf16", 362e12), ("f16", 362e12), ("fp8", 733e12), ("f32", 91.6e12), ("f64", 1.43e12)),
        hbm_bytes_per_s=0.88 * 864e9,
        memory_bytes=46068 * 2**20,
        launch_us=3.0,
        call_us=CALL_US,
        tile_depth=TILE_DEPTH,
        efficiency=0.6,
        attention_flops_per_s=(0.45 * 362e12, 0.35 * 362e12),
        sources=(
            ("matmul_flops_per_s", "data sheet: NVIDIA L40S datasheet, the dense one of each pair"),
            ("f64", f"data sheet: 1/64 of f32 ({_ADA})"),
            ("efficiency", "assumed: 350 W hold the clocks of large matmuls down"),
            ("hbm_bytes_per_s", "assumed: 0.88 of 864 GB/s (NVIDIA L40S datasheet), as read on "
                                "H200"),
            ("memory_bytes", "published: 46068 MiB with ECC, as nvidia-smi shows it on several "
                             "hosts; data sheet 48 GB"),
            _LAUNCH,
            _CALL,
            _DEPTH,
            ("attention_flops_per_s", "assumed: 0.45 and 0.35 of the data sheet's rate"),
        ),
    ),
    (
        LinkLevel("pcie", 30.0, 0.7 * 32e9, 8, sources=_assumed(
            "0.7 of PCIe 4 x16, 64 GB/s both ways (NVIDIA L40S datasheet), no NVLink")),
        LinkLevel("ethernet", 60.0, 0.8 * 12.5e9, 8, sources=_assumed("0.8 of 100 Gb/s a device")),
    ),
    host_link_bytes_per_s=25e9,
    host_memory_bytes=1024 * GIB,
    sources=_node("PCIe 4 x16 (NVIDIA L40S datasheet)"),
)  # fmt: skip

RTX4090 = Cluster(
    "rtx4090",
    8,
    1,
    Device(
        "NVIDIA GeForce RTX 4090",
        (
            ("bf16", 165.2e12), ("f16", 165.2e12), ("fp8", 330.3e12), ("f32", 82.6e12),
            ("f64", 1.29e12),
        ),
        hbm_bytes_per_s=0.88 * 1008e9,
        memory_bytes=24 * GIB,
        launch_us=3.0,
        call_us=CALL_US,
        tile_depth=TILE_DEPTH,
        efficiency=0.85,
        attention_flops_per_s=(0.7 * 165.2e12, 0.55 * 165.2e12),
        sources=(
            ("matmul_flops_per_s", f"data sheet: {_ADA}, RTX 4090, dense, sums in float32"),
            ("f64", f"data sheet: 1/64 of f32 ({_ADA})"),
            ("efficiency", "assumed: 0.85 of the whitepaper's rate"),
            ("hbm_bytes_per_s", f"assumed: 0.88 of 1,008 GB/s ({_ADA}), as read on H200"),
            ("memory_bytes", f"data sheet: 24 GB ({_ADA})"),
            _LAUNCH,
            _CALL,
            _DEPTH,
            ("attention_flops_per_s", "assumed: 0.7 and 0.55 of the whitepaper's rate"),
        ),
    ),
    (
        LinkLevel("pcie", 40.0, 10e9, 8, sources=_assumed(
            "10 GB/s through host memory, the driver has no peer access")),
        LinkLevel("ethernet", 80.0, 0.8 * 3.125e9, 8, sources=_assumed("0.8 of 25 Gb/s a device")),
    ),
    host_link_bytes_per_s=25e9,
    host_memory_bytes=256 * GIB,
    sources=_node(f"PCIe 4 x16 ({_ADA})"),
)  # fmt: skip

RTX5090 = Cluster(
    "rtx5090",
    8,
    1,
    Device(
        "NVIDIA GeForce RTX 5090",
        (("bf16", 209.5e12), ("f16", 209.5e12), ("fp8", 419e12), ("f32", 104.8e12),
         ("f64", 1.64e12)),
        hbm_bytes_per_s=0.88 * 1792e9,
        memory_bytes=32607 * 2**20,
        launch_us=3.0,
        call_us=CALL_US,
        tile_depth=TILE_DEPTH,
        efficiency=0.85,
        attention_flops_per_s=(0.7 * 209.5e12, 0.55 * 209.5e12),
        sources=(
            ("matmul_flops_per_s", f"data sheet: {_BLACKWELL}, RTX 5090, dense, sums in float32"),
            ("f64", f"data sheet: 1/64 of f32 ({_BLACKWELL})"),
            ("efficiency", "assumed: 0.85 of the whitepaper's rate; short readings at boost clocks "
                           "lie above it (254 Tflop/s of bf16, gpu-flops-bench)"),
            ("hbm_bytes_per_s", f"assumed: 0.88 of 1,792 GB/s ({_BLACKWELL}), as read on H200"),
            ("memory_bytes", "published: 32607 MiB, as nvidia-smi shows it on several hosts; "
                             "whitepaper 32 GB"),
            _LAUNCH,
            _CALL,
            _DEPTH,
            ("attention_flops_per_s", "assumed: 0.7 and 0.55 of the whitepaper's rate"),
        ),
    ),
    (
        LinkLevel("pcie", 40.0, 20e9, 8, sources=_assumed(
            "20 GB/s through host memory, the driver has no peer access")),
        LinkLevel("ethernet", 80.0, 0.8 * 3.125e9, 8, sources=_assumed("0.8 of 25 Gb/s a device")),
    ),
    host_link_bytes_per_s=49.2e9,
    host_memory_bytes=256 * GIB,
    sources=_node(f"PCIe 5 x16 ({_BLACKWELL})"),
)  # fmt: skip
