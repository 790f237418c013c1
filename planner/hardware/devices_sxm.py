"""Nodes of eight NVIDIA SXM cards, joined by NVLink switches and one network card a device.

Readings are of one host of 8 H200 (torch 2.11.0+cu130, 2026-11-20), medians of 15 to 20 calls;
such hosts vary by up to 20% in sustained clocks. NVIDIA's tables give some rates with sparsity
only: half of that is dense. The bandwidth of NVLink and PCIe counts both directions there: half of
it is one. "GB" of device memory are 2**30 bytes there.
"""

from .cluster import (
    CALL_US,
    CLOCK_GAIN,
    TILE_DEPTH,
    TRITON,
    AttentionReading,
    Cluster,
    Curve,
    Device,
    LinkLevel,
    Sources,
)
from .networks import BY_NODES, RAILS

GIB = 2**30
# NCCL on H200 hosts: us at the sizes below, by (collective, ranks). Over two they were queued
# behind matmuls (2026-11-29). Over four and eight they were issued one at a time (2026-11-20): up
# to 8 MiB they stand here without the host's part, which is what those over two took longer that
# way, and never below what two take.
_NCCL_BYTES = (2**16, 2**20, 2**23, 2**26, 2**29)
_NCCL_H200_US = {
    ("all_reduce", 2): (8, 16, 51, 263, 1771),
    ("all_gather", 2): (7, 13, 40, 169, 1125),
    ("reduce_scatter", 2): (8, 12, 37, 171, 1130),
    ("all_to_all", 2): (9, 15, 34, 180, 1054),
    ("send_recv", 2): (10, 17, 57, 298, 1537),
    ("all_reduce", 4): (18, 21, 64, 336, 2332),
    ("all_gather", 4): (13, 13, 50, 202, 1287),
    ("reduce_scatter", 4): (13, 15, 45, 204, 1314),
    ("all_to_all", 4): (9, 19, 42, 225, 1453),
    ("send_recv", 4): (10, 20, 75, 464, 1564),
    ("all_reduce", 8): (43, 43, 90, 395, 2747),
    ("all_gather", 8): (29, 29, 61, 220, 1407),
    ("reduce_scatter", 8): (32, 32, 71, 216, 1413),
    ("all_to_all", 8): (26, 35, 70, 249, 1469),
    ("send_recv", 8): (10, 25, 119, 873, 1576),
}
_LAUNCH = ("launch_us", "assumed: shortest kernel on the stream, launches queued ahead")
_DEPTH = "measured: 442 products of an H200, 512 to 65,536 tokens, 128 to 14,336 features"
_GAIN = "measured: steps of 34 programs on H200s, 4 to 90% of the time attention"
_HOPPER = (
    ("tile_depth", f"assumed: as H200; {_DEPTH}"),
    ("clock_gain", f"assumed: as H200; {_GAIN}"),
)
_CALL = ("call_us", "measured: compiled functions of small models on H200s, 30% apart by run")
_PODS = "NVIDIA DGX BasePOD reference architecture, core components"
_HOPPER_NODE: Sources = (
    ("devices_per_node", f"data sheet: eight GPUs ({_PODS}, DGX H200 and H100)"),
    ("host_memory_bytes", f"data sheet: 2 TB of DDR5 ({_PODS}, DGX H200 and H100)"),
)
_NDR: Sources = (
    ("alpha_us", "assumed"),
    ("bytes_per_s", "assumed: 0.8 of the 400 Gb/s of one ConnectX-7 a device "
                    f"({_PODS}: eight single-port cards)"),
    ("by_nodes", RAILS),
)  # fmt: skip
_AS_NDR = ("by_nodes", "assumed: as published of 400 Gb/s InfiniBand and H100s")


# cuDNN on an H200 within a step (2026-11-21), and 0.93 and 0.91 of what the probe reads between
# matmuls, its share of those (2026-11-23): heads of 128 at 1024, and of 64 at 16384. Heads of 64 at
# 1024 and 2048, and of 128 at 4096: kernel tables of steps of six models, by the card's matmuls
# (2026-11-29).
_CUDNN_HOPPER = (
    AttentionReading(64, 1024, 310e12, 210e12),
    AttentionReading(64, 2048, 341e12, 281e12),
    AttentionReading(64, 4096, 340e12, 307e12),
    AttentionReading(64, 16384, 392e12, 379e12),
    # From the step of a Llama of 1B on one row of 65,536 (2026-11-23).
    AttentionReading(64, 65536, 437e12, 423e12),
    AttentionReading(128, 1024, 361e12, 253e12),
    AttentionReading(128, 2048, 388e12, 297e12),
    AttentionReading(128, 4096, 520e12, 400e12),
    AttentionReading(128, 8192, 543e12, 427e12),
    # Alone 608 and 537; of that 0.94 in a step on two H200s with cp=2 (2026-11-22), 1.0 in one of
    # a Qwen3 of 0.6B on one (2026-11-23).
    AttentionReading(128, 65536, 590e12, 521e12),
)
# runtime/engine/kernels/triton_attention.py, 0.93 and 0.91 of the probe's readings (2026-11-23).
_TRITON_HOPPER = tuple(
    AttentionReading(head_dim, positions, 0.93e12 * forward, 0.91e12 * backward, TRITON)
    for head_dim, positions, forward, backward in (
        (64, 252, 87, 50),
        (64, 1792, 243, 179),
        (128, 252, 137, 62),
        (128, 1792, 304, 214),
        (128, 7168, 368, 308),
        (128, 12288, 380, 327),
        (256, 252, 113, 49),
        (256, 1024, 307, 137),
        (256, 1792, 352, 170),
        (256, 4096, 434, 216),
        (256, 16384, 499, 254),
    )
)


def _nccl_h200() -> tuple[Curve, ...]:
    return tuple(
        Curve(name, group, tuple(zip(_NCCL_BYTES, map(float, us), strict=True)))
        for (name, group), us in _NCCL_H200_US.items()
    )


def _as_h200(links: str) -> Sources:
    return (
        ("alpha_us", "assumed: as measured on H200"),
        ("bytes_per_s", f"assumed: 0.74 of {links} one way, the share measured on H200"),
    )


H200 = Cluster(
    "h200",
    8,
    1,
    Device(
        "NVIDIA H200 SXM",
        (("bf16", 682e12), ("f16", 682e12), ("fp8", 1300e12), ("f32", 50e12), ("f64", 45e12)),
        hbm_bytes_per_s=4.244e12,
        memory_bytes=143771 * 2**20,
        launch_us=3.0,
        call_us=CALL_US,
        tile_depth=TILE_DEPTH,
        clock_gain=CLOCK_GAIN,
        attention_readings=(*_CUDNN_HOPPER, *_TRITON_HOPPER),
        sources=(
            ("bf16", "measured: matmuls of 52 steps of 34 programs, as where 5,000 elements are "
                     "contracted and attention takes 0.2 of the time of both"),
            ("f16", "assumed: as bf16"),
            ("fp8", "measured: median of a Llama's matmuls at M=16384, tensor-wise scales"),
            ("f32", "assumed: 0.75 of 67 Tflop/s (NVIDIA H200 datasheet), no TF32"),
            ("f64", "assumed: 0.67 of 67 Tflop/s (NVIDIA H200 datasheet, tensor cores)"),
            ("hbm_bytes_per_s", "measured: a copy, read and write"),
            ("memory_bytes", "measured: as nvidia-smi shows it"),
            _LAUNCH,
            _CALL,
            ("tile_depth", _DEPTH),
            ("clock_gain", _GAIN),
            ("attention_readings", "measured: cuDNN within steps, windows and heads above 128 in "
                                   "Triton between matmuls, times cuDNN's share of such a reading"),
        ),
    ),
    (
        LinkLevel(
            "nvlink", 29.0, 333.9e9, 8, _nccl_h200(),
            (
                ("alpha_us", "measured: NCCL all_gather of 1 MiB over 8, less the host's part"),
                ("bytes_per_s", "measured: NCCL all_gather of 512 MiB over 8"),
                ("curves", "measured: NCCL, 64 KiB to 512 MiB, without the host's part"),
            ),
        ),
        LinkLevel("infiniband", 60.0, 0.8 * 50e9, 8, sources=_NDR, by_nodes=BY_NODES),
    ),
    host_link_bytes_per_s=49.2e9,
    host_memory_bytes=2048 * GIB,
    sources=(
        ("host_link_bytes_per_s", "measured: both directions at once, each"),
        *_HOPPER_NODE,
    ),
)  # fmt: skip

H100 = Cluster(
    "h100",
    8,
    1,
    Device(
        "NVIDIA H100 SXM",
        (("bf16", 989.4e12), ("f16", 989.4e12), ("fp8", 1978.9e12), ("f32", 67e12), ("f64", 67e12)),
        hbm_bytes_per_s=0.88 * 3.35e12,
        memory_bytes=80 * GIB,
        launch_us=3.0,
        call_us=CALL_US,
        tile_depth=TILE_DEPTH,
        clock_gain=CLOCK_GAIN,
        efficiency=0.67,
        attention_readings=(*_CUDNN_HOPPER, *_TRITON_HOPPER),
        sources=(
            ("matmul_flops_per_s", "data sheet: NVIDIA H100 Tensor Core GPU architecture, table of "
                                   "peak rates of the SXM5, dense; f32 outside of tensor cores"),
            ("efficiency", "assumed: H200, the same chip, reached 660 of 989"),
            ("hbm_bytes_per_s", "assumed: 0.88 of 3.35 TB/s (NVIDIA H100 datasheet), as read on "
                                "H200 (4.24 of 4.8)"),
            ("memory_bytes", "data sheet: 80 GB (NVIDIA H100 datasheet)"),
            _LAUNCH,
            _CALL,
            *_HOPPER,
            ("attention_readings", "assumed: as measured on H200, the same chip"),
        ),
    ),
    (
        LinkLevel("nvlink", 29.0, 334e9, 8,
                  sources=_as_h200("the 900 GB/s both ways (NVIDIA H100 datasheet), 450 GB/s")),
        LinkLevel("infiniband", 60.0, 0.8 * 50e9, 8, sources=_NDR, by_nodes=BY_NODES),
    ),
    host_link_bytes_per_s=49.2e9,
    host_memory_bytes=2048 * GIB,
    sources=(
        ("host_link_bytes_per_s", "assumed: as measured on H200; PCIe 5 x16, 128 GB/s both ways "
                                  "(NVIDIA H100 datasheet)"),
        *_HOPPER_NODE,
    ),
)  # fmt: skip

A100 = Cluster(
    "a100",
    8,
    1,
    Device(
        "NVIDIA A100 SXM 80GB",
        (("bf16", 312e12), ("f16", 312e12), ("f32", 19.5e12), ("f64", 19.5e12)),
        hbm_bytes_per_s=0.88 * 2.039e12,
        memory_bytes=80 * GIB,
        launch_us=3.0,
        call_us=CALL_US,
        tile_depth=TILE_DEPTH,
        efficiency=0.8,
        attention_flops_per_s=(190e12, 160e12),
        sources=(
            ("matmul_flops_per_s", "data sheet: NVIDIA A100 Tensor Core GPU datasheet, dense; f32 "
                                   "without TF32, f64 on tensor cores"),
            ("efficiency", "assumed: 0.8 of the data sheet's rate"),
            ("hbm_bytes_per_s", "assumed: 0.88 of 2,039 GB/s (NVIDIA A100 datasheet), as read on "
                                "H200"),
            ("memory_bytes", "data sheet: 80 GB (NVIDIA A100 datasheet)"),
            _LAUNCH,
            _CALL,
            _HOPPER[0],
            ("attention_flops_per_s", "assumed: 0.61 and 0.51 of the data sheet's rate, inside the "
                                      "50 to 73% of FlashAttention-2 (arXiv 2307.08691)"),
        ),
    ),
    (
        LinkLevel("nvlink", 29.0, 223e9, 8,
                  sources=_as_h200("the 600 GB/s both ways (NVIDIA A100 datasheet), 300 GB/s")),
        LinkLevel("infiniband", 60.0, 0.8 * 25e9, 8, sources=(
            ("alpha_us", "assumed"),
            ("bytes_per_s", "assumed: 0.8 of the 200 Gb/s of one ConnectX-6 a device (NVIDIA DGX "
                            "A100 datasheet: eight single-port cards)"),
            _AS_NDR,
        ), by_nodes=BY_NODES),
    ),
    host_link_bytes_per_s=25e9,
    host_memory_bytes=2048 * GIB,
    sources=(
        ("devices_per_node", "data sheet: NVIDIA DGX A100 640GB, eight GPUs"),
        ("host_link_bytes_per_s", "assumed: 0.8 of PCIe 4 x16, 64 GB/s both ways (NVIDIA A100 "
                                  "datasheet)"),
        ("host_memory_bytes", "data sheet: NVIDIA DGX A100 640GB, 2 TB"),
    ),
)  # fmt: skip

B200 = Cluster(
    "b200",
    8,
    1,
    Device(
        "NVIDIA B200 SXM",
        (("bf16", 2250e12), ("f16", 2250e12), ("fp8", 4500e12), ("f32", 75e12), ("f64", 37e12)),
        hbm_bytes_per_s=0.88 * 8e12,
        memory_bytes=183359 * 2**20,
        launch_us=3.0,
        call_us=CALL_US,
        tile_depth=TILE_DEPTH,
        efficiency=0.67,
        attention_flops_per_s=(0.49 * 2250e12, 0.4 * 2250e12),
        sources=(
            ("matmul_flops_per_s", "data sheet: NVIDIA HGX B200, an eighth of 36 (f16, bf16) and "
                                   "72 Pflop/s (fp8), halved for dense, of 600 (f32) and 296 "
                                   "Tflop/s (f64)"),
            ("efficiency", "assumed: as H200"),
            ("hbm_bytes_per_s", "assumed: 0.88 of 8 TB/s (NVIDIA DGX B200 datasheet: 64 TB/s), as "
                                "read on H200"),
            ("memory_bytes", "published: 183359 MiB, as nvidia-smi shows it on several hosts; data "
                             "sheet 180 GB"),
            _LAUNCH,
            _CALL,
            _HOPPER[0],
            ("attention_flops_per_s", "assumed: H200's shares of the data sheet's rate, at 4096 "
                                      "positions of head size 128"),
        ),
    ),
    (
        LinkLevel("nvlink", 29.0, 668e9, 8,
                  sources=_as_h200("the 1.8 TB/s both ways (NVIDIA HGX B200), 900 GB/s")),
        LinkLevel("infiniband", 60.0, 0.8 * 50e9, 8, sources=_NDR, by_nodes=BY_NODES),
    ),
    host_link_bytes_per_s=49.2e9,
    host_memory_bytes=2048 * GIB,
    sources=(
        ("devices_per_node", f"data sheet: eight GPUs ({_PODS}, DGX B200)"),
        ("host_link_bytes_per_s", "assumed: as measured on H200, PCIe 5 x16"),
        ("host_memory_bytes", "data sheet: 2 TB, up to 4 (NVIDIA DGX B200 datasheet)"),
    ),
)  # fmt: skip
