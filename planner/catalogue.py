"""The catalogue: parts by name, each number with its source.

Measured figures are from one host of 8 H200 (SXM, NVLink all to all, torch 2.11.0+cu130,
2026-11-20), medians of 15 to 20 calls; such hosts vary by up to 20% in sustained clocks. The rest
are datasheet figures, and where neither exists the remark says "assumed".
"""

from .cluster import Cluster, Curve, Device, LinkLevel

GIB = 2**30
# NCCL on the H200 host: us at the sizes below, by (collective, ranks).
_NCCL_BYTES = (2**16, 2**20, 2**23, 2**26, 2**29)
_NCCL_H200_US = {
    ("all_reduce", 2): (30, 35, 66, 264, 1708),
    ("all_gather", 2): (28, 33, 52, 173, 1060),
    ("reduce_scatter", 2): (27, 29, 51, 182, 1107),
    ("all_to_all", 2): (35, 34, 50, 155, 922),
    ("send_recv", 2): (64, 63, 89, 285, 1562),
    ("all_reduce", 4): (40, 40, 79, 336, 2332),
    ("all_gather", 4): (35, 33, 62, 202, 1287),
    ("reduce_scatter", 4): (32, 32, 59, 204, 1314),
    ("all_to_all", 4): (34, 38, 58, 225, 1453),
    ("send_recv", 4): (57, 66, 107, 464, 1564),
    ("all_reduce", 8): (83, 62, 105, 395, 2747),
    ("all_gather", 8): (65, 49, 73, 220, 1407),
    ("reduce_scatter", 8): (66, 49, 85, 216, 1413),
    ("all_to_all", 8): (52, 54, 86, 249, 1469),
    ("send_recv", 8): (64, 71, 151, 873, 1576),
}


def _nccl_h200() -> tuple[Curve, ...]:
    return tuple(
        Curve(name, group, tuple(zip(_NCCL_BYTES, map(float, us), strict=True)))
        for (name, group), us in _NCCL_H200_US.items()
    )


H200 = Cluster(
    "h200",
    8,
    1,
    Device(
        "NVIDIA H200 SXM",
        (
            ("bf16", 660e12),  # measured: median of a Llama's matmuls at M=16384, 614 to 777
            ("f16", 660e12),  # assumed as bf16
            ("fp8", 1300e12),  # measured: median of the same matmuls, tensor-wise scales
            ("f32", 50e12),  # assumed: 0.75 of the datasheet's 67 (no TF32)
            ("f64", 45e12),  # assumed: 0.67 of the datasheet's 67 (tensor cores)
        ),
        hbm_bytes_per_s=4.244e12,  # measured: copy, read + write
        memory_bytes=143771 * 2**20,  # nvidia-smi
        launch_us=3.0,  # assumed: shortest kernel on the stream, launches queued ahead
        attention_flops_per_s=(590e12, 448e12),  # measured: cuDNN, B4 S4096, causal-counted
    ),
    (
        # alpha and beta: measured 8-rank all_gather at 1 MiB and bus bandwidth at 512 MiB.
        LinkLevel("nvlink", 49.0, 333.9e9, 8, _nccl_h200()),
        # datasheet: ConnectX-7, 400 Gb/s a device; alpha and the share of it reached are assumed.
        LinkLevel("infiniband", 60.0, 0.8 * 50e9, 8),
    ),
    host_link_bytes_per_s=49.2e9,  # measured: both directions at once, each
    host_memory_bytes=2048 * GIB,  # assumed
)

H100 = Cluster(
    "h100",
    8,
    1,
    Device(
        "NVIDIA H100 SXM",
        (  # NVIDIA H100 Tensor Core GPU datasheet, dense rates
            ("bf16", 989.4e12),
            ("f16", 989.4e12),
            ("fp8", 1978.9e12),
            ("f32", 67e12),
            ("f64", 67e12),
        ),
        hbm_bytes_per_s=0.88
        * 3.35e12,  # datasheet; share reached as measured on H200 (4.24 of 4.8)
        memory_bytes=80 * GIB,
        launch_us=3.0,  # assumed as H200
        efficiency=0.67,  # assumed: H200, the same chip, measured 660 of 989
        attention_flops_per_s=(590e12, 448e12),  # assumed as H200, the same chip
    ),
    (
        LinkLevel("nvlink", 49.0, 334e9, 8),  # assumed as H200: 900 GB/s both ways, the same links
        LinkLevel("infiniband", 60.0, 0.8 * 50e9, 8),  # datasheet 400 Gb/s a device; alpha assumed
    ),
    host_link_bytes_per_s=49.2e9,  # assumed as H200: PCIe 5 x16
    host_memory_bytes=2048 * GIB,  # assumed
)

A100 = Cluster(
    "a100",
    8,
    1,
    Device(
        "NVIDIA A100 SXM 80GB",
        (  # NVIDIA A100 Tensor Core GPU datasheet, dense rates
            ("bf16", 312e12),
            ("f16", 312e12),
            ("f32", 19.5e12),
            ("f64", 19.5e12),
        ),
        hbm_bytes_per_s=0.88 * 2.039e12,  # datasheet; share reached as measured on H200
        memory_bytes=80 * GIB,
        launch_us=3.0,  # assumed as H200
        efficiency=0.8,  # assumed
        attention_flops_per_s=(190e12, 160e12),  # assumed: about 0.6 and 0.5 of the matmul peak
    ),
    (
        LinkLevel("nvlink", 49.0, 223e9, 8),  # datasheet 600 GB/s both ways; share as on H200
        LinkLevel("infiniband", 60.0, 0.8 * 25e9, 8),  # 200 Gb/s a device; alpha assumed
    ),
    host_link_bytes_per_s=25e9,  # PCIe 4 x16 datasheet 32 GB/s; share reached assumed
    host_memory_bytes=1024 * GIB,  # assumed
)

B200 = Cluster(
    "b200",
    8,
    1,
    Device(
        "NVIDIA B200 SXM",
        (  # NVIDIA HGX B200 datasheet, dense rates of one of eight
            ("bf16", 2250e12),
            ("f16", 2250e12),
            ("fp8", 4500e12),
            ("f32", 75e12),
            ("f64", 37e12),
        ),
        hbm_bytes_per_s=0.88 * 8e12,  # datasheet; share reached as measured on H200
        memory_bytes=180 * 10**9,  # datasheet: 1,440 GB in a DGX B200
        launch_us=3.0,  # assumed as H200
        efficiency=0.67,  # assumed as H200
        attention_flops_per_s=(0.6 * 2250e12, 0.45 * 2250e12),  # assumed: H200's shares of peak
    ),
    (
        LinkLevel("nvlink", 49.0, 668e9, 8),  # datasheet 1.8 TB/s both ways; share as on H200
        LinkLevel("infiniband", 60.0, 0.8 * 50e9, 8),  # DGX B200: ConnectX-7, 400 Gb/s a device
    ),
    host_link_bytes_per_s=49.2e9,  # assumed as H200: PCIe 5 x16
    host_memory_bytes=2048 * GIB,  # DGX B200 datasheet: 2 TB, up to 4
)

MI300X = Cluster(
    "mi300x",
    8,
    1,
    Device(
        "AMD Instinct MI300X",
        (  # AMD Instinct MI300X datasheet, dense matrix rates
            ("bf16", 1307.4e12),
            ("f16", 1307.4e12),
            ("fp8", 2614.9e12),
            ("f32", 163.4e12),
            ("f64", 163.4e12),
        ),
        hbm_bytes_per_s=0.8 * 5.3e12,  # datasheet; share reached assumed
        memory_bytes=192 * 10**9,  # datasheet
        launch_us=5.0,  # assumed
        efficiency=0.45,  # assumed
        attention_flops_per_s=(0.35 * 1307.4e12, 0.25 * 1307.4e12),  # assumed shares of peak
    ),
    (
        # datasheet: 7 Infinity Fabric links of 128 GB/s both ways; share reached assumed 0.7.
        LinkLevel("infinity fabric", 60.0, 0.7 * 7 * 64e9, 8),
        LinkLevel("ethernet", 60.0, 0.8 * 50e9, 8),  # assumed: one 400 Gb/s card a device
    ),
    host_link_bytes_per_s=49.2e9,  # datasheet PCIe 5 x16; share reached as on H200
    host_memory_bytes=2048 * GIB,  # assumed
)

L40S = Cluster(
    "l40s",
    8,
    1,
    Device(
        "NVIDIA L40S",
        (  # NVIDIA L40S datasheet, dense rates
            ("bf16", 362e12),
            ("f16", 362e12),
            ("fp8", 733e12),
            ("f32", 91.6e12),
            ("f64", 1.4e12),  # 1/64 of f32: NVIDIA Ada architecture whitepaper
        ),
        hbm_bytes_per_s=0.88 * 864e9,  # datasheet; share reached as measured on H200
        memory_bytes=48 * 10**9,  # datasheet
        launch_us=3.0,  # assumed as H200
        efficiency=0.6,  # assumed: 350 W hold the clocks of large matmuls down
        attention_flops_per_s=(0.45 * 362e12, 0.35 * 362e12),  # assumed shares of peak
    ),
    (
        LinkLevel("pcie", 30.0, 0.7 * 32e9, 8),  # datasheet PCIe 4 x16, no NVLink; share assumed
        LinkLevel("ethernet", 60.0, 0.8 * 12.5e9, 8),  # assumed: 100 Gb/s a device
    ),
    host_link_bytes_per_s=25e9,  # datasheet PCIe 4 x16; share reached assumed
    host_memory_bytes=1024 * GIB,  # assumed
)

RTX4090 = Cluster(
    "rtx4090",
    8,
    1,
    Device(
        "NVIDIA GeForce RTX 4090",
        (  # NVIDIA Ada GPU architecture whitepaper, dense rates with float32 accumulation
            ("bf16", 165.2e12),
            ("f16", 165.2e12),
            ("fp8", 330.3e12),
            ("f32", 82.6e12),
            ("f64", 1.29e12),
        ),
        hbm_bytes_per_s=0.88 * 1008e9,  # whitepaper; share reached as measured on H200
        memory_bytes=24 * GIB,  # whitepaper
        launch_us=3.0,  # assumed as H200
        efficiency=0.85,  # assumed
        attention_flops_per_s=(0.7 * 165.2e12, 0.55 * 165.2e12),  # assumed shares of peak
    ),
    (
        # PCIe 4 x16 without peer access: through host memory; both figures assumed.
        LinkLevel("pcie", 40.0, 10e9, 8),
        LinkLevel("ethernet", 80.0, 0.8 * 3.125e9, 8),  # assumed: 25 Gb/s a device
    ),
    host_link_bytes_per_s=25e9,  # whitepaper PCIe 4 x16; share reached assumed
    host_memory_bytes=256 * GIB,  # assumed
)

RTX5090 = Cluster(
    "rtx5090",
    8,
    1,
    Device(
        "NVIDIA GeForce RTX 5090",
        (  # NVIDIA RTX Blackwell GPU architecture whitepaper, dense, float32 accumulation
            ("bf16", 209.5e12),
            ("f16", 209.5e12),
            ("fp8", 419e12),
            ("f32", 104.8e12),
            ("f64", 1.64e12),
        ),
        hbm_bytes_per_s=0.88 * 1792e9,  # whitepaper; share reached as measured on H200
        memory_bytes=32 * GIB,  # whitepaper
        launch_us=3.0,  # assumed as H200
        efficiency=0.85,  # assumed
        attention_flops_per_s=(0.7 * 209.5e12, 0.55 * 209.5e12),  # assumed shares of peak
    ),
    (
        # PCIe 5 x16 without peer access: through host memory; both figures assumed.
        LinkLevel("pcie", 40.0, 20e9, 8),
        LinkLevel("ethernet", 80.0, 0.8 * 3.125e9, 8),  # assumed: 25 Gb/s a device
    ),
    host_link_bytes_per_s=49.2e9,  # whitepaper PCIe 5 x16; share reached as on H200
    host_memory_bytes=256 * GIB,  # assumed
)

# One rank of a CPU host: every figure assumed, to plan the demo and the tests on any machine.
CPU = Cluster(
    "cpu",
    256,
    1,
    Device(
        "CPU rank",
        (("bf16", 10e9), ("f16", 10e9), ("f32", 40e9), ("f64", 20e9)),
        hbm_bytes_per_s=10e9,
        memory_bytes=8 * GIB,
        launch_us=5.0,
    ),
    (
        LinkLevel("shared memory", 150.0, 1e9, 256),
        LinkLevel("ethernet", 300.0, 1e9, 256),
    ),
    host_link_bytes_per_s=10e9,
    host_memory_bytes=32 * GIB,
)

CATALOGUE = {
    cluster.name: cluster
    for cluster in (CPU, H200, H100, A100, B200, MI300X, L40S, RTX4090, RTX5090)
}
