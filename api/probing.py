"""The machine at hand, measured, as a cluster."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .demands import Cluster as Named
from .demands import Say, silent
from .errors import one_class

if TYPE_CHECKING:
    import torch

    from meshwright.planner.hardware.cluster import (
        AttentionReading,
        Cluster,
        Curve,
        Device,
        LinkLevel,
    )
    from meshwright.runtime.probe.compute import Extent
    from meshwright.runtime.probe.links import LinkRead
    from meshwright.runtime.probe.timing import Reading

MOST_CPU_RANKS = 4  # of a CPU's collectives


@dataclass(frozen=True)
class Probed:
    """A measured cluster. like: the part of the catalogue that what was not measured is of.
    host_alone_bytes_per_s: of the link to the host one way at a time, `out` and `back`."""

    cluster: "Cluster"
    like: str
    host_alone_bytes_per_s: dict[str, float]


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
    from meshwright.runtime.probe.links import links_read

    from .here import named

    gpus = read_gpus()
    like = parse_cluster(named(gpus, Named("auto")).spec)
    kind = "cuda" if gpus else "cpu"
    device = torch.device(kind)
    extent = compute.extent_of(device, full)
    with compute.threads_of_a_rank(device):
        measured = _device(like.device, device, extent, say)
        say("host link")
        host = compute.host_rates(device, extent)
    ranks = len(gpus) or min(MOST_CPU_RANKS, like.devices_per_node)
    context = compute.context_bytes(device)
    say(f"collectives over {ranks} devices")
    links = links_read(kind, ranks)
    found = replace(
        like,
        name=name or f"probed-{like.name}".replace(":", "-"),
        devices_per_node=ranks,
        device=_unseen(measured, context, links.communicator_bytes),
        levels=_levels(like.levels, links.reads),
        host_link_bytes_per_s=_rounded(host["both"].median),
        overlap_price=round(links.overlap[0], 3) if links.overlap else like.overlap_price,
        sources=(
            *((key, text) for key, text in like.sources if key == "host_memory_bytes"),
            ("host_link_bytes_per_s", _host_source(host)),
            ("overlap_price", _overlap_source(links.overlap)),
        ),
    )
    alone = {way: _rounded(read.median) for way, read in host.items() if way != "both"}
    return Probed(found, like.name, alone)


def _unseen(device: "Device", context: int, communicator: int) -> "Device":
    """Return the device with what its memory holds that no allocator sees."""
    sources = dict(device.sources)
    if context:
        sources["context_bytes"] = "measured: bytes in use that no allocator holds"
    if communicator:
        sources["communicator_bytes"] = "measured: of one over all devices, with its rings"
    return replace(
        device,
        context_bytes=context,
        communicator_bytes=communicator,
        sources=tuple(sources.items()),
    )


def _host_source(host: "dict[str, Reading]") -> str:
    both = _source(host["both"], 1e9, "GB/s", "both directions at once, each")
    alone = [f"{way} {host[way].median / 1e9:.4g}" for way in ("out", "back") if way in host]
    return f"{both}; alone {', '.join(alone)} GB/s" if alone else both


def _overlap_source(overlap: tuple[float, float, float] | None) -> str:
    from meshwright.planner.hardware.cluster import OVERLAP_SOURCE
    from meshwright.runtime.probe.links import BESIDE

    if overlap is None:
        return OVERLAP_SOURCE
    _, low, high = overlap
    return f"measured: {BESIDE}, {low:.2f} to {high:.2f}"


def _device(like: "Device", device: "torch.device", extent: "Extent", say: Say) -> "Device":
    """Return the device as it was measured; rates of types that were not are those of the part."""
    from meshwright.runtime.probe import attended, compute

    compiled = attended.compile_ahead(device, extent)
    rates = dict(like.matmul_flops_per_s)
    sources = {k: f"not measured; of {like.name}: {v}" for k, v in like.sources}
    say("warming the device up")
    compute.heat(device, extent)
    types = compute.DTYPES | ({"fp8": compute.FP8} if compute.has_fp8(device) else {})
    for dtype, kind in types.items():
        say(f"matmuls in {dtype}")
        found = compute.matmul_rate(kind, device, extent)
        rates[dtype] = _rounded(found.median)
        sources[dtype] = _source(found, 1e12, "Tflop/s", "by the shapes of a Llama's weights")
    depth = like.tile_depth
    if device.type == "cuda":
        say("matmuls with a short contracted dimension")
        read = compute.tile_depth(device, extent)
        depth = round(read.median, 1)
        sources["tile_depth"] = _source(
            read, 1.0, "elements", "contracted dimensions of 512 and 8,192"
        )
    say("copies and kernels")
    copied, kernel = compute.copy_rate(device, extent), compute.shortest_kernel(device, extent)
    sources["hbm_bytes_per_s"] = _source(copied, 1e9, "GB/s", "a copy, read and write")
    share = compute.LAYER_SHARE if device.type == "cuda" else 1.0
    queued = _source(kernel, 1e-6, "us", "shortest kernel, launches queued ahead")
    of_layers = f", times {share}, what kernels of layers take beside their bytes"
    sources["launch_us"] = queued + (of_layers if share != 1 else "")
    say("waiting for kernels of attention to compile")
    compiled()
    readings = _attention(device, extent, say)
    shares = f", times {attended.STEP_SHARE}, what a step reaches" if device.type == "cuda" else ""
    sources["attention_readings"] = (
        f"measured: as programs run it in {attended.dtype_on(device)}, between matmuls{shares}"
    )
    sources.pop("matmul_flops_per_s", None)
    return replace(
        like,
        matmul_flops_per_s=tuple(rates.items()),
        efficiency=1.0,
        tile_depth=depth,
        hbm_bytes_per_s=_rounded(copied.median),
        launch_us=round(1e6 * share * kernel.median, 2),
        attention_flops_per_s=None,
        attention_readings=readings,
        sources=tuple(sources.items()),
    )


def _attention(
    device: "torch.device", extent: "Extent", say: Say
) -> "tuple[AttentionReading, ...]":
    from meshwright.planner.hardware.cluster import TRITON, AttentionReading
    from meshwright.runtime.probe import attended

    readings = []
    for head_dim, length, window in attended.attentions(extent):
        narrow = f", window {window}" if window else ""
        say(f"attention, heads of {head_dim} at {length} tokens{narrow}")
        read = attended.attention_read(device, extent, (head_dim, length, window))
        shares = attended.STEP_SHARE if device.type == "cuda" else (1.0, 1.0)
        forward, backward = shares[0] * read.forward.median, shares[1] * read.backward.median
        backend = TRITON if read.backend == TRITON else ""
        rates = _rounded(forward), _rounded(backward)
        readings.append(AttentionReading(read.head_dim, read.positions, *rates, backend))
    return tuple(readings)


def _levels(
    like: "tuple[LinkLevel, ...]", reads: "tuple[LinkRead, ...]"
) -> "tuple[LinkLevel, ...]":
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


def _spread(reads: "tuple[LinkRead, ...]") -> str:
    """Return how far the slow readings of large buffers are above their median."""
    most = max(slow / us - 1 for read in reads for _, us, slow in read.points[-1:])
    return f"slow readings of the largest up to {most:.0%} above it"


def _source(found: "Reading", unit: float, name: str, how: str) -> str:
    low, high = sorted((found.low / unit, found.high / unit))
    return f"measured: {how}, {low:.4g} to {high:.4g} {name} in {found.count} readings"


def _rounded(value: float) -> float:
    """Return a rate with four digits."""
    return float(f"{value:.4g}")
