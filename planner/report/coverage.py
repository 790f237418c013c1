"""What a prediction rests on: readings, data sheets, assumptions; and what fell back."""

from collections.abc import Iterator

from meshwright.ir.plan import Plan

from ..hardware.cluster import OVERLAP_PRICE, OVERLAP_SOURCE, Cluster, Device
from ..hardware.usable import HOST_SHARE, reserved_bytes
from .backends import backends


def coverage(plan: Plan, cluster: Cluster) -> list[str]:
    """Lines for a report; none is ever left out, so that no number looks surer than it is."""
    chosen = list(backends(plan, cluster))
    return [
        f"  {line}"
        for line in (
            *_device(plan, cluster.device),
            *_links(cluster),
            *_node(cluster),
            *dict.fromkeys(chosen),
            *_rest(plan, any(line.startswith("fell back") for line in chosen)),
        )
    ]


def _device(plan: Plan, device: Device) -> Iterator[str]:
    sources = dict(device.sources)
    dtype = plan.dtype
    if dtype not in dict(device.matmul_flops_per_s):
        yield f"assumed: {device.name} has no rate for {dtype}, its slowest one is taken"
    rates = sources.get(dtype, sources.get("matmul_flops_per_s"))
    yield _said(f"matmul rates of {device.name} in {dtype}", rates)
    if device.efficiency != 1.0:
        what = f"large matmuls on {device.name} reach {device.efficiency:.0%} of that"
        yield _said(what, sources.get("efficiency"))
    if not device.attention_readings and device.attention_flops_per_s is None:
        yield f"assumed: attention on {device.name} runs at its matmul rate"
    else:
        read = "attention_readings" if device.attention_readings else "attention_flops_per_s"
        rate = sources.get(read)
        yield _said(f"attention on {device.name}, forward and backward", rate)
    yield _said("memory bandwidth", sources.get("hbm_bytes_per_s"))
    yield _said(f"memory, {device.memory_bytes / 2**30:.1f} GiB", sources.get("memory_bytes"))
    yield _said(f"{device.launch_us:g} us a launch", sources.get("launch_us"))
    if plan.replays:
        yield "chosen: functions are issued as CUDA graphs, recorded once; none waits for the host"
    elif device.call_us:
        what = f"{device.call_us:g} us of the host to issue a function"
        yield _said(what, sources.get("call_us"))


def _links(cluster: Cluster) -> Iterator[str]:
    for level in cluster.levels:
        sources = dict(level.sources)
        if level.curves:
            names = sorted({f"{c.collective} over {c.group}" for c in level.curves})
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
            yield _said(f"link {level.name}: {shown}", sources.get("curves"))
        else:
            yield f"assumed: link {level.name} by latency and bandwidth alone, no curve"
        yield _said(f"latency of {level.name}, {level.alpha_us:g} us", sources.get("alpha_us"))
        what = f"bandwidth of {level.name}, {level.bytes_per_s / 1e9:.1f} GB/s a device"
        yield _said(what, sources.get("bytes_per_s"))
        if level.full_mesh:
            share = level.pair_bytes_per_s / level.bytes_per_s
            what = f"{share:.0%} of that between two devices, a full mesh of {level.full_mesh}"
            yield _said(what, sources.get("full_mesh"))
        if level.by_nodes and cluster.nodes > 1:
            share = level.share(cluster.nodes)
            what = f"{share:.0%} of that over {cluster.nodes} nodes"
            yield _said(what, sources.get("by_nodes"))
        if level.hop_us and cluster.nodes > 1:
            ring, tree = level.hop_us
            what = (
                f"{ring:g} us for each node of a ring, {tree:g} for a doubling in a tree, each way"
            )
            yield _said(what, sources.get("hop_us"))


def _node(cluster: Cluster) -> Iterator[str]:
    sources = dict(cluster.sources)
    yield _said("link to the host", sources.get("host_link_bytes_per_s"))
    yield _said("memory of the host", sources.get("host_memory_bytes"))
    yield f"assumed: {HOST_SHARE:.0%} of the host's memory for what plans keep there"
    price = cluster.overlap_price
    what = f"compute beside a collective takes {price:.0%} of the shared time more"
    ours = OVERLAP_SOURCE if price == OVERLAP_PRICE else None
    yield _said(what, sources.get("overlap_price", ours))
    reserved = reserved_bytes(cluster) / cluster.device.memory_bytes
    yield f"assumed: {100 * reserved:.3g}% of the memory for the driver, links and fragments"


def _said(what: str, source: str | None) -> str:
    """How a figure is known, what it is, and from where."""
    if source is None:
        return f"given: {what}, by the cluster's file"
    how, _, where = source.partition(": ")
    return f"{how}: {what}" + (f": {where}" if where else "")


def _rest(plan: Plan, slower: bool) -> Iterator[str]:
    alone = [p.name for p in plan.pieces if sum(i.piece == p.name for i in plan.instances) == 1]
    yield f"segments that did not repeat: {', '.join(alone) or 'none'}"
    proofs = [line for line in plan.coverage if line.startswith("capture: ")]
    others = [line for line in plan.coverage if line not in proofs]
    yield from proofs
    yield from (f"fell back: {line}" for line in others)
    if not others and not slower:
        yield "fell back: nothing"
