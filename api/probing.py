"""The machine at hand, measured, as a cluster."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .demands import Cluster as Named
from .demands import Say, silent
from .errors import one_class

if TYPE_CHECKING:
    import torch

    from meshwright.planner.hardware.cluster import Cluster, Curve, Device, LinkLevel
    from meshwright.runtime.probe.compute import Extent
    from meshwright.runtime.probe.links import LinkRead
    from meshwright.runtime.probe.timing import Reading

MOST_CPU_RANKS = 4  # of a CPU's collectives


@dataclass(frozen=True)
class Probed:
    """A measured cluster. like: the part of the catalogue that what was not measured is of.
    context_bytes: of each device, that the CUDA context holds."""

    cluster: "Cluster"
    like: str
    context_bytes: int


@one_class
def probe(*, full: bool = False, name: str = "", say: Say = silent) -> Probed:
    """Measure this machine's devices and the links between them.

    full: more sizes, for longer. name: of the cluster, "" for one after the part. Raises
    MeshwrightError for cards that differ, or are like no part of the catalogue.
    """
    import torch

    from meshwright.planner.hardware.cluster_file import parse_cluster
    from meshwright.runtime.launch.machine import read_gpus
    from meshwright.runtime.probe import compute
    from meshwright.runtime.probe.links import link_reads

    from .here import named

    gpus = read_gpus()
    like = parse_cluster(named(gpus, Named("auto")).spec)
    kind = "cuda" if gpus else "cpu"
    device = torch.device(kind)
    extent = compute.extent_of(device, full)
    with compute.threads_of_a_rank(device):
        measured = _device(like.device, device, extent, say)
        say("host link")
        host = compute.host_rate(device, extent)
    ranks = len(gpus) or min(MOST_CPU_RANKS, like.devices_per_node)
    say(f"collectives over {ranks} devices")
    levels = _levels(like.levels, link_reads(kind, ranks))
    found = replace(
        like,
        name=name or f"probed-{like.name}".replace(":", "-"),
        devices_per_node=ranks,
        device=measured,
        levels=levels,
        host_link_bytes_per_s=_rounded(host.median),
        sources=(
            *((key, text) for key, text in like.sources if key == "host_memory_bytes"),
            ("host_link_bytes_per_s", _source(host, 1e9, "GB/s", "both directions at once, each")),
        ),
    )
    return Probed(found, like.name, compute.context_bytes(device))


def _device(like: "Device", device: "torch.device", extent: "Extent", say: Say) -> "Device":
    """Return the device as it was measured; rates of types that were not are those of the part."""
    from meshwright.planner.hardware.cluster import TRITON, AttentionReading
    from meshwright.runtime.probe import compute

    rates = dict(like.matmul_flops_per_s)
    sources = {k: f"not measured; of {like.name}: {v}" for k, v in like.sources}
    say("warming the device up")
    compute.heat(device, extent)
    for dtype, kind in compute.DTYPES.items():
        say(f"matmuls in {dtype}")
        found = compute.matmul_rate(kind, device, extent)
        rates[dtype] = _rounded(found.median)
        sources[dtype] = _source(found, 1e12, "Tflop/s", "by the shapes of a Llama's weights")
    say("copies and kernels")
    copied, kernel = compute.copy_rate(device, extent), compute.shortest_kernel(device, extent)
    sources["hbm_bytes_per_s"] = _source(copied, 1e9, "GB/s", "a copy, read and write")
    sources["launch_us"] = _source(kernel, 1e-6, "us", "shortest kernel, launches queued ahead")
    attended = compute.DTYPES["bf16" if device.type == "cuda" else "f32"]
    readings = []
    for read in compute.attention_reads(attended, device, extent):
        window = f", window {read.window}" if read.window else ""
        say(f"attention, heads of {read.head_dim} at {read.length} tokens{window}")
        rate = _rounded(read.forward.median), _rounded(read.backward.median)
        backend = TRITON if read.backend == TRITON else ""
        readings.append(AttentionReading(read.head_dim, read.positions, *rate, backend))
    sources["attention_readings"] = f"measured: as programs run it in {attended}, between matmuls"
    sources.pop("matmul_flops_per_s", None)
    return replace(
        like,
        matmul_flops_per_s=tuple(rates.items()),
        efficiency=1.0,
        hbm_bytes_per_s=_rounded(copied.median),
        launch_us=round(1e6 * kernel.median, 2),
        attention_flops_per_s=None,
        attention_readings=tuple(readings),
        sources=tuple(sources.items()),
    )


def _levels(like: "tuple[LinkLevel, ...]", reads: "list[LinkRead]") -> "tuple[LinkLevel, ...]":
    """Return the innermost link with measured curves; as in the catalogue for a single device."""
    inner = like[0]
    if not reads:
        said = tuple((key, f"not measured, one device: {text}") for key, text in inner.sources)
        return (replace(inner, span=1, sources=said),)
    largest = max(read.group for read in reads)
    gathered = next(r for r in reads if r.kind == "all_gather" and r.group == largest)
    few, first_us, _ = gathered.points[0]
    many, last_us, _ = gathered.points[-1]
    wire = (largest - 1) / largest * (many - few)
    where = f"all_gather over {largest}"
    return (
        replace(
            inner,
            span=largest,
            alpha_us=first_us,
            bytes_per_s=_rounded(wire / (last_us - first_us) * 1e6),
            curves=tuple(map(_curve, reads)),
            sources=(
                ("alpha_us", f"measured: {where} of {few} bytes"),
                ("bytes_per_s", f"measured: {where}, from {few} to {many} bytes"),
                ("curves", f"measured: median of each size; {_spread(reads)}"),
            ),
        ),
    )


def _curve(read: "LinkRead") -> "Curve":
    from meshwright.planner.hardware.cluster import Curve

    return Curve(read.kind, read.group, tuple((size, us) for size, us, _ in read.points))


def _spread(reads: "list[LinkRead]") -> str:
    """Return how far the slow readings of large buffers are above their median."""
    most = max(slow / us - 1 for read in reads for _, us, slow in read.points[-1:])
    return f"slow readings of the largest up to {most:.0%} above it"


def _source(found: "Reading", unit: float, name: str, how: str) -> str:
    low, high = sorted((found.low / unit, found.high / unit))
    return f"measured: {how}, {low:.4g} to {high:.4g} {name} in {found.count} readings"


def _rounded(value: float) -> float:
    """Return a rate with four digits."""
    return float(f"{value:.4g}")
