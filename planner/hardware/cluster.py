"""Clusters: what the planner knows about devices and links, as frozen data and as TOML.

A cluster is `nodes` equal nodes of `devices_per_node` equal devices. Link levels go from the
innermost outwards; a group of ranks runs on the first level that spans it. A level may carry
measured curves; where it has none, time is alpha + bytes over the wire / beta.

Text: TOML whose first line is `# meshwright cluster v1`; printed again it is the same bytes.
"""

import difflib
import re
import tomllib
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from meshwright.ir.errors import PlanError

HEADER = "# meshwright cluster v1"
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
# How a figure is known: every source begins with one of these, a colon and where it is from; an
# assumption may say no more.
KNOWN_BY = ("measured", "data sheet", "published", "assumed")
# (figure's name, where it is from); figures without one were given by the user.
Sources = tuple[tuple[str, str], ...]


class ClusterError(PlanError):
    """A cluster that is unknown, unreadable or impossible."""


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator (or one CPU rank).

    matmul_flops_per_s: (dtype, rate) per element type, already at the efficiency below where that
    is 1. efficiency: the share of those rates that large matmuls reach; 1 when they were measured.
    attention_flops_per_s: (forward, backward) of the fused kernel; None: the matmul rate.
    attention_readings: the same by head size and positions, where they were measured.
    sources: by field; a rate of one element type may have its own, by the name of the type.
    """

    name: str
    matmul_flops_per_s: tuple[tuple[str, float], ...]
    hbm_bytes_per_s: float
    memory_bytes: int
    launch_us: float
    efficiency: float = 1.0
    attention_flops_per_s: tuple[float, float] | None = None
    attention_readings: tuple["AttentionReading", ...] = ()
    sources: Sources = ()

    def matmul_rate(self, dtype: str) -> float:
        """Flops per second reached in `dtype`; a type without a rate runs at the slowest one."""
        rates = dict(self.matmul_flops_per_s)
        return self.efficiency * rates.get(dtype, min(rates.values()))

    def attention_rate(self, head_dim: int, positions: float) -> tuple[float, float] | None:
        """(forward, backward) flops per second: of the nearest head size read, between its readings
        linear in positions, beyond them the last one's."""
        if not self.attention_readings:
            return self.attention_flops_per_s
        near = min((abs(r.head_dim - head_dim), -r.head_dim) for r in self.attention_readings)
        found = sorted(
            (r.positions, r.forward, r.backward)
            for r in self.attention_readings
            if r.head_dim == -near[1]
        )
        after = next((k for k, r in enumerate(found) if r[0] >= positions), len(found))
        if after in (0, len(found)):
            return found[min(after, len(found) - 1)][1:]
        (x0, *low), (x1, *high) = found[after - 1], found[after]
        share = (positions - x0) / (x1 - x0)
        forward, backward = (a + share * (b - a) for a, b in zip(low, high, strict=True))
        return forward, backward


@dataclass(frozen=True, slots=True)
class AttentionReading:
    """Flops per second of fused causal attention, for heads of one size, at one length."""

    head_dim: int
    positions: int
    forward: float
    backward: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Readings of one collective over `group` ranks: (bytes, us) by growing size.

    Bytes are those of the largest buffer on a rank: gathered output, input of a reduction, and the
    local buffer of all_to_all and send_recv.
    """

    collective: str
    group: int
    points: tuple[tuple[int, float], ...]

    def time_us(self, size_bytes: float) -> float:
        """Linear between readings, flat below the first, the last slope above the last."""
        points = self.points
        if size_bytes <= points[0][0] or len(points) == 1:
            return points[0][1]
        after = next((k for k, p in enumerate(points) if p[0] >= size_bytes), len(points) - 1)
        (x0, y0), (x1, y1) = points[after - 1], points[after]
        return y0 + (y1 - y0) * (size_bytes - x0) / (x1 - x0)


@dataclass(frozen=True, slots=True)
class LinkLevel:
    """Links that join groups of up to `span` devices; bytes_per_s is one direction, per device."""

    name: str
    alpha_us: float
    bytes_per_s: float
    span: int
    curves: tuple[Curve, ...] = ()
    sources: Sources = ()

    def curve(self, collective: str, group: int) -> Curve | None:
        found = (c for c in self.curves if (c.collective, c.group) == (collective, group))
        return next(found, None)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal devices in equal nodes; the host link is one direction, per device."""

    name: str
    devices_per_node: int
    nodes: int
    device: Device
    levels: tuple[LinkLevel, ...]
    host_link_bytes_per_s: float
    host_memory_bytes: int
    sources: Sources = ()

    @property
    def num_devices(self) -> int:
        return self.devices_per_node * self.nodes

    def level(self, group: int) -> LinkLevel:
        """The innermost level that spans `group` devices."""
        spanning = (level for level in self.levels if level.span >= group)
        return next(spanning, self.levels[-1])


def format_cluster(cluster: Cluster) -> str:
    """The cluster as TOML; parse_cluster_text gives the same cluster back."""
    lines = [HEADER, *_pairs(cluster, "name devices_per_node nodes host_link_bytes_per_s"
                             " host_memory_bytes"), *_source_lines("sources", cluster.sources),
             "", "[device]"]  # fmt: skip
    device = cluster.device
    lines += _pairs(device, "name hbm_bytes_per_s memory_bytes launch_us efficiency")
    if device.attention_flops_per_s is not None:
        lines.append(f"attention_flops_per_s = {list(device.attention_flops_per_s)}")
    if device.attention_readings:
        rows = [list(astuple(r)) for r in device.attention_readings]
        lines += ["# head size, positions, forward, backward", f"attention_readings = {rows}"]
    lines += ["", "[device.matmul_flops_per_s]"]
    lines += [f"{dtype} = {rate!r}" for dtype, rate in device.matmul_flops_per_s]
    lines += _source_lines("device.sources", device.sources)
    for level in cluster.levels:
        lines += ["", "[[levels]]", *_pairs(level, "name alpha_us bytes_per_s span")]
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
        return _checked(_cluster_of(tomllib.loads(text)), where)
    except tomllib.TOMLDecodeError as error:
        raise ClusterError(f"{where}: not TOML: {error}") from None
    except KeyError as error:
        raise ClusterError(f"{where}: entry {error} is missing") from None
    except (TypeError, ValueError, AttributeError) as error:
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
            AttentionReading(int(head_dim), int(positions), float(forward), float(backward))
            for head_dim, positions, forward, backward in table.get("attention_readings", ())
        ),
        _sources_of(table),
    )


def _level_of(table: dict) -> LinkLevel:
    curves = tuple(
        Curve(
            str(c["collective"]),
            int(c["group"]),
            tuple((int(b), float(us)) for b, us in zip(c["bytes"], c["us"], strict=True)),
        )
        for c in table.get("curves", ())
    )
    return LinkLevel(
        str(table["name"]),
        float(table["alpha_us"]),
        float(table["bytes_per_s"]),
        int(table["span"]),
        curves,
        _sources_of(table),
    )


def _checked(cluster: Cluster, where: str) -> Cluster:
    device = cluster.device
    rates = dict(device.matmul_flops_per_s)
    positive: dict[str, float] = {
        "devices_per_node": cluster.devices_per_node,
        "nodes": cluster.nodes,
        "host_link_bytes_per_s": cluster.host_link_bytes_per_s,
        "device.memory_bytes": device.memory_bytes,
        "device.hbm_bytes_per_s": device.hbm_bytes_per_s,
        "device.efficiency": device.efficiency,
        "device.matmul_flops_per_s": min(rates.values(), default=0),
        "levels": len(cluster.levels),
        "device.attention_readings": min(
            (min(astuple(r)) for r in device.attention_readings), default=1
        ),
        **{f"levels.{v.name}.bytes_per_s": v.bytes_per_s for v in cluster.levels},
        **{f"levels.{v.name}.span": v.span for v in cluster.levels},
    }
    for name, value in positive.items():
        if value <= 0:
            raise ClusterError(f"{where}: {name} is {value}, must be above 0")
    read = [(r.head_dim, r.positions) for r in device.attention_readings]
    if twice := [pair for pair in read if read.count(pair) > 1]:
        head_dim, positions = twice[0]
        raise ClusterError(
            f"{where}: {len(twice)} attention_readings of heads of {head_dim} at {positions} "
            "positions; give one"
        )
    for level in cluster.levels:
        for curve in level.curves:
            _check_curve(curve, where)
    return cluster


def _check_curve(curve: Curve, where: str) -> None:
    if curve.collective not in COLLECTIVES:
        raise ClusterError(f"{where}: collective {curve.collective!r} is none of {COLLECTIVES}")
    sizes = [size for size, _ in curve.points]
    if not sizes or sizes != sorted(set(sizes)):
        raise ClusterError(f"{where}: bytes of {curve.collective} must grow, found {sizes}")


def parse_cluster(spec: str) -> Cluster:
    """The cluster a user names: `h200:8`, `h100:8x16` (devices x nodes), `cpu:4`, or a TOML file.

    A bare catalogue name means one device. Raises ClusterError: an unknown name with the nearest
    known one, a count that does not fit a node, a file that cannot be read.
    """
    from .catalogue import CATALOGUE

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


def collective_us(cluster: Cluster, collective: str, size_bytes: float, group: int) -> float:
    """Time of one collective over `group` neighbouring ranks, in us.

    size_bytes: the largest buffer on a rank (see Curve). Measured where the level has a curve of
    this group, else alpha + bytes on the wire / beta; ring factors as in NCCL's bus bandwidth.
    """
    if group == 1:
        return 0.0
    level = cluster.level(group)
    curve = level.curve(collective, group)
    if curve is not None:
        return curve.time_us(size_bytes)
    wire = size_bytes * WIRE_SHARE[collective](group)
    return level.alpha_us + wire / level.bytes_per_s * 1e6


WIRE_SHARE: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "send_recv": lambda n: 1.0,
}
