"""Clusters by name and as TOML.

Text: TOML whose first line is `# meshwright cluster v1`; printed again it is the same bytes.
"""

import difflib
import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path

from meshwright.ir.ops.implementation import DEVICES
from meshwright.ir.plan import Plan

from ..units import parse_bytes
from .catalogue import CATALOGUE
from .cluster import (
    COLLECTIVES,
    OVERLAP_PRICE,
    AttentionReading,
    Cluster,
    ClusterError,
    Curve,
    Device,
    LinkLevel,
    Sources,
)
from .cluster_entries import OF_MATMULS, UNSEEN, check_entries
from .networks import with_network

HEADER = "# meshwright cluster v1"
# What a spec may say besides a name: memory of each device, and of the hosts for all their devices,
# and the kind of network between nodes.
MEMORIES, NETWORK = ("gpu_memory", "host_memory"), "network"
MOST_US = 1e6  # of any latency
MOST_PRICE = 4  # of compute beside collectives, as a share of their time


def format_cluster(cluster: Cluster) -> str:
    """The cluster as TOML; parse_cluster_text gives the same cluster back."""
    price = "overlap_price" if cluster.overlap_price != OVERLAP_PRICE else ""
    lines = [HEADER, *_pairs(cluster, "name devices_per_node nodes host_link_bytes_per_s"
                             f" host_memory_bytes {price}"),
             *_source_lines("sources", cluster.sources), "", "[device]"]  # fmt: skip
    device = cluster.device
    lines += _pairs(device, "name type hbm_bytes_per_s memory_bytes launch_us call_us efficiency")
    lines += _pairs(
        device, " ".join(name for name in (*UNSEEN, *OF_MATMULS) if getattr(device, name))
    )
    if device.attention_flops_per_s is not None:
        lines.append(f"attention_flops_per_s = {list(device.attention_flops_per_s)}")
    if device.attention_readings:
        rows = [list(astuple(r)[: 5 if r.backend else 4]) for r in device.attention_readings]
        lines += [
            "# head size, positions, forward, backward, backend where it is not the vendor's",
            f"attention_readings = {rows}".replace("'", '"'),
        ]
    lines += ["", "[device.matmul_flops_per_s]"]
    lines += [f"{dtype} = {rate!r}" for dtype, rate in device.matmul_flops_per_s]
    lines += _source_lines("device.sources", device.sources)
    for level in cluster.levels:
        lines += ["", "[[levels]]", *_pairs(level, "name alpha_us bytes_per_s span")]
        if level.by_nodes:
            shares = ", ".join(f"[{nodes}, {share!r}]" for nodes, share in level.by_nodes)
            lines.append(f"by_nodes = [{shares}]")
        if level.hop_us:
            lines.append(f"hop_us = {list(level.hop_us)}")
        if level.full_mesh:
            lines.append(f"full_mesh = {level.full_mesh}")
        lines += _source_lines("levels.sources", level.sources)
        for curve in level.curves:
            lines += ["", "[[levels.curves]]", *_pairs(curve, "collective group")]
            lines.append(f"bytes = {[size for size, _ in curve.points]}")
            lines.append(f"us = {[us for _, us in curve.points]}")
    return "\n".join(lines) + "\n"


def _source_lines(table: str, sources: Sources) -> list[str]:
    lines = [f"{name} = {_toml(text)}" for name, text in sources]
    return ["", f"[{table}]", *lines] if lines else []


def _pairs(item: object, names: str) -> list[str]:
    return [f"{name} = {_toml(getattr(item, name))}" for name in names.split()]


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def parse_cluster_text(text: str, where: str = "cluster") -> Cluster:
    """Inverse of format_cluster. Raises ClusterError with `where` and the entry at fault."""
    first = text.partition("\n")[0].strip()
    if first != HEADER:
        raise ClusterError(f"{where}: the first line must be {HEADER!r}, found {first!r}")
    try:
        table = tomllib.loads(text)
        check_entries(table, where)
        return _checked(_cluster_of(table), where)
    except tomllib.TOMLDecodeError as error:
        raise ClusterError(f"{where}: not TOML: {error}") from None
    except KeyError as error:
        raise ClusterError(f"{where}: entry {error} is missing") from None
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        if isinstance(error, ClusterError):
            raise
        raise ClusterError(f"{where}: an entry has the wrong form: {error}") from None


def _cluster_of(table: dict) -> Cluster:
    return Cluster(
        str(table["name"]),
        int(table["devices_per_node"]),
        int(table["nodes"]),
        _device_of(table["device"]),
        tuple(_level_of(level) for level in table["levels"]),
        float(table["host_link_bytes_per_s"]),
        int(table["host_memory_bytes"]),
        _sources_of(table),
        float(table.get("overlap_price", OVERLAP_PRICE)),
    )


def _sources_of(table: dict) -> Sources:
    return tuple((str(name), str(text)) for name, text in table.get("sources", {}).items())


def _device_of(table: dict) -> Device:
    attention = table.get("attention_flops_per_s")
    rates = table["matmul_flops_per_s"].items()
    return Device(
        str(table["name"]),
        tuple((dtype, float(rate)) for dtype, rate in rates),
        float(table["hbm_bytes_per_s"]),
        int(table["memory_bytes"]),
        float(table["launch_us"]),
        float(table.get("efficiency", 1.0)),
        None if attention is None else (float(attention[0]), float(attention[1])),
        tuple(
            AttentionReading(
                int(head_dim), int(positions), float(forward), float(backward), *map(str, backend)
            )
            for head_dim, positions, forward, backward, *backend in table.get(
                "attention_readings", ()
            )
        ),
        _sources_of(table),
        str(table.get("type", DEVICES[0])),
        float(table.get("call_us", 0.0)),
        int(table.get("context_bytes", 0)),
        int(table.get("communicator_bytes", 0)),
        float(table.get("tile_depth", 0.0)),
        float(table.get("clock_gain", 0.0)),
    )


def _level_of(table: dict) -> LinkLevel:
    return LinkLevel(
        str(table["name"]),
        float(table["alpha_us"]),
        float(table["bytes_per_s"]),
        int(table["span"]),
        tuple(_curve_of(curve) for curve in table.get("curves", ())),
        _sources_of(table),
        tuple((int(nodes), float(share)) for nodes, share in table.get("by_nodes", ())),
        int(table.get("full_mesh", 0)),
        _hops_of(table),
    )


def _hops_of(table: dict) -> tuple[float, ...]:
    given = table.get("hop_us")
    if given is None:
        return ()
    hops = given if isinstance(given, list) else [given]
    if len(hops) != 2 or not all(type(us) in (int, float) and 0 < us <= MOST_US for us in hops):
        raise ValueError(
            f"levels.{table['name']}.hop_us is {given}; give two times in us above 0 and up to "
            f"{MOST_US:g}, of rings and of trees, or drop it"
        )
    return tuple(map(float, hops))


def _curve_of(table: dict) -> Curve:
    sizes, times = table["bytes"], table["us"]
    if len(sizes) != len(times):
        raise ValueError(
            f"levels.curves of {table['collective']} have {len(sizes)} bytes and {len(times)} us; "
            "give as many of both"
        )
    numbers = tuple((int(size), float(us)) for size, us in zip(sizes, times, strict=True))
    return Curve(str(table["collective"]), int(table["group"]), numbers)


def _checked(cluster: Cluster, where: str) -> Cluster:
    device = cluster.device
    if device.type not in DEVICES:
        raise ClusterError(f"{where}: device.type is {device.type!r}, must be one of {DEVICES}")
    for name, value in _figures(cluster):
        if not 0 < value < math.inf:
            raise ClusterError(f"{where}: {name} is {value}, must be a number above 0")
    for name in UNSEEN:
        value, most = getattr(device, name), device.memory_bytes
        if not 0 <= value < most:
            raise ClusterError(
                f"{where}: device.{name} is {value}, must be from 0 to less than {most}"
            )
    for name, largest in OF_MATMULS.items():
        if not 0 <= (value := getattr(device, name)) <= largest:
            raise ClusterError(f"{where}: device.{name} is {value}, must be from 0 to {largest}")
    if not 0 <= cluster.overlap_price <= MOST_PRICE:
        price = cluster.overlap_price
        raise ClusterError(f"{where}: overlap_price is {price}, must be from 0 to {MOST_PRICE}")
    for name, value in _latencies(cluster):
        if not 0 <= value <= MOST_US:
            raise ClusterError(f"{where}: {name} is {value}, must be from 0 to {MOST_US:g}")
    read = [(r.head_dim, r.positions, r.backend) for r in device.attention_readings]
    if twice := [pair for pair in read if read.count(pair) > 1]:
        head_dim, positions, _ = twice[0]
        raise ClusterError(
            f"{where}: {len(twice)} attention_readings of heads of {head_dim} at {positions} "
            "positions; give one"
        )
    for level in cluster.levels:
        _check_shares(level, where)
        _check_mesh(level, cluster.devices_per_node, where)
        for curve in level.curves:
            _check_curve(curve, where)
    _check_spans(cluster, where)
    return cluster


def _figures(cluster: Cluster) -> Iterator[tuple[str, float]]:
    """Give the entries that are above 0, by name."""
    device, rates = cluster.device, cluster.device.matmul_flops_per_s
    yield "devices_per_node", cluster.devices_per_node
    yield "nodes", cluster.nodes
    yield "host_link_bytes_per_s", cluster.host_link_bytes_per_s
    yield "host_memory_bytes", cluster.host_memory_bytes
    yield "device.memory_bytes", device.memory_bytes
    yield "device.hbm_bytes_per_s", device.hbm_bytes_per_s
    yield "device.efficiency", device.efficiency
    yield "device.matmul_flops_per_s", len(rates)
    yield from ((f"device.matmul_flops_per_s.{dtype}", rate) for dtype, rate in rates)
    for rate in device.attention_flops_per_s or ():
        yield "device.attention_flops_per_s", rate
    for reading in device.attention_readings:
        yield from (("device.attention_readings", figure) for figure in astuple(reading)[:4])
    yield "levels", len(cluster.levels)
    for level in cluster.levels:
        yield f"levels.{level.name}.bytes_per_s", level.bytes_per_s
        yield f"levels.{level.name}.span", level.span
        for curve in level.curves:
            yield from ((f"us of {curve.collective}", us) for _, us in curve.points)


def _latencies(cluster: Cluster) -> Iterator[tuple[str, float]]:
    yield "device.launch_us", cluster.device.launch_us
    yield "device.call_us", cluster.device.call_us
    yield from ((f"levels.{level.name}.alpha_us", level.alpha_us) for level in cluster.levels)


def _check_spans(cluster: Cluster, where: str) -> None:
    """Raise ClusterError where no link joins all devices."""
    count = cluster.num_devices
    if max(level.span for level in cluster.levels) < count:
        spans = ", ".join(f"{level.name} spans {level.span}" for level in cluster.levels)
        raise ClusterError(
            f"{where}: no link joins all {count} devices (nodes = {cluster.nodes}, "
            f"devices_per_node = {cluster.devices_per_node}): {spans}; add [[levels]] with "
            f"span = {count}"
        )


def _check_shares(level: LinkLevel, where: str) -> None:
    nodes, shares = [n for n, _ in level.by_nodes], [share for _, share in level.by_nodes]
    if nodes != sorted(set(nodes)) or min(nodes, default=1) < 1:
        raise ClusterError(f"{where}: nodes of levels.{level.name}.by_nodes must grow, are {nodes}")
    if not all(0 < share <= 1 for share in shares):
        raise ClusterError(
            f"{where}: shares of levels.{level.name}.by_nodes must lie above 0 and up to 1, "
            f"are {shares}"
        )


def _check_mesh(level: LinkLevel, per_node: int, where: str) -> None:
    name, mesh = f"levels.{level.name}.full_mesh", level.full_mesh
    if mesh and level.span > per_node:
        raise ClusterError(
            f"{where}: {name} is of links inside a node; this level spans {level.span} devices, "
            f"a node holds {per_node}"
        )
    if mesh and mesh < max(2, level.span):
        raise ClusterError(
            f"{where}: {name} is {mesh}, must be 0 for a switch or at least {max(2, level.span)}, "
            "the devices that the level spans"
        )


def _check_curve(curve: Curve, where: str) -> None:
    if curve.collective not in COLLECTIVES:
        raise ClusterError(f"{where}: collective {curve.collective!r} is none of {COLLECTIVES}")
    sizes = [size for size, _ in curve.points]
    if not sizes or sizes != sorted(set(sizes)):
        raise ClusterError(f"{where}: bytes of {curve.collective} must grow, found {sizes}")


def parse_cluster(spec: str) -> Cluster:
    """The cluster a user names: `h200:8`, `h100:8x16` (devices x nodes), `cpu:4`, or a TOML file.

    A bare catalogue name means one device. Memories other than the part's own follow, and a kind of
    network: `h200:8x4,gpu_memory=100GiB,host_memory=1TiB,network=efa`. Raises ClusterError: an
    unknown name with the nearest known one, a count that does not fit a node, a file that cannot be
    read, no size, no network.
    """
    named, *others = re.split(r",(?=\w+=)", spec)
    cluster = _named(named)
    keys = [given.partition("=")[0] for given in others]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ClusterError(
            f"cluster {spec}: {twice[0]} is given {keys.count(twice[0])} times; give one"
        )
    for given in others:
        cluster = _with(cluster, given)
    return cluster


def own_text(cluster: Cluster) -> str:
    """Return the text of a cluster whose name alone does not say what it is, "" of another."""
    try:
        same = parse_cluster(cluster.name) == cluster
    except ClusterError:
        same = False
    return "" if same else format_cluster(cluster)


def cluster_of(plan: Plan) -> Cluster:
    """Return the cluster that a plan was made for. Raises ClusterError for a damaged text."""
    if plan.cluster_text:
        return parse_cluster_text(plan.cluster_text, f"[cluster] {plan.cluster} of the plan")
    return parse_cluster(plan.cluster)


def _with(cluster: Cluster, given: str) -> Cluster:
    """A cluster with one of its memories or its network as `KEY=VALUE` says, and that in its
    name."""
    key, _, text = given.partition("=")
    if key == NETWORK:
        kind = text.strip()
        return replace(with_network(cluster, kind), name=f"{cluster.name},{key}={kind}")
    if key not in MEMORIES:
        raise ClusterError(
            f"cluster {cluster.name}: {given!r} is unknown; give {' or '.join(MEMORIES)} as "
            f"{MEMORIES[0]}=24GiB, or {NETWORK}=efa"
        )
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise ClusterError(f"cluster {cluster.name}: {key}: {error}") from None
    name = f"{cluster.name},{key}={text.strip().replace(' ', '')}"
    if key == MEMORIES[1]:
        return replace(cluster, name=name, host_memory_bytes=size)
    return replace(cluster, name=name, device=_with_own_memory(cluster.device, size, text))


def _with_own_memory(device: Device, size: int, given: str) -> Device:
    said = ("memory_bytes", f"given: {given}")
    others = tuple(s for s in device.sources if s[0] != "memory_bytes")
    return replace(device, memory_bytes=size, sources=(*others, said))


def _named(spec: str) -> Cluster:
    if spec.endswith(".toml") or "/" in spec:
        return _read(Path(spec))
    name, colon, counts = spec.partition(":")
    if name not in CATALOGUE:
        raise ClusterError(f"unknown cluster {name!r}{_nearest(name, CATALOGUE)}")
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", counts if colon else "1")
    if match is None or 0 in (int(match[1]), int(match[2] or 1)):
        raise ClusterError(
            f"cluster {spec!r}: write {name}:DEVICES or {name}:DEVICESxNODES, each >= 1"
        )
    return _sized(CATALOGUE[name], int(match[1]), int(match[2] or 1), spec)


def resized(spec: str, devices_per_node: int, nodes: int) -> Cluster:
    """Return the cluster that a spec names with other counts.

    Raises ClusterError where a catalogue's node holds fewer devices, or a file names no link
    between nodes.
    """
    name, *memories = re.split(r",(?=\w+=)", spec)
    part = name.partition(":")[0]
    if part in CATALOGUE:
        counts = f"{devices_per_node}x{nodes}" if nodes > 1 else f"{devices_per_node}"
        return parse_cluster(",".join([f"{part}:{counts}", *memories]))
    cluster = parse_cluster(spec)
    if nodes > 1 and len(cluster.levels) == 1:
        raise _no_network(cluster, spec, nodes)
    return _sized(cluster, devices_per_node, nodes, spec)


def _no_network(cluster: Cluster, spec: str, nodes: int) -> ClusterError:
    return ClusterError(
        f"cluster {spec}: {nodes} nodes, and its only link, {cluster.levels[0].name}, is "
        "inside one; add [[levels]] for the network"
    )


def _read(path: Path) -> Cluster:
    try:
        return parse_cluster_text(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ClusterError(f"cluster file {path} cannot be read: {reason}") from None


def _nearest(name: str, known: dict[str, Cluster]) -> str:
    close = difflib.get_close_matches(name, known, 1, 0.3)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{hint} the catalogue holds {', '.join(known)}, or give a TOML file"


def _sized(model: Cluster, devices: int, nodes: int, spec: str) -> Cluster:
    """The catalogue's node with `devices` of its devices, `nodes` times."""
    if devices > model.devices_per_node:
        raise ClusterError(
            f"cluster {spec!r}: a node of {model.name} holds {model.devices_per_node} devices, "
            f"asked for {devices}; write {model.name}:{model.devices_per_node}xNODES"
        )
    levels = [replace(v, span=devices) for v in model.levels[:1]]
    if nodes > 1:
        levels += [replace(v, span=devices * nodes) for v in model.levels[1:]]
    name = f"{model.name}:{devices}" + (f"x{nodes}" if nodes > 1 else "")
    return replace(model, name=name, devices_per_node=devices, nodes=nodes, levels=tuple(levels))
