"""Sweeps: names of what changes from point to point, and the points that they make.

A sweep is written NAME=VALUE,VALUE,...; a value `xF` is a factor on what the cluster has. What a
link's bandwidth changes of measured curves is the time above that of the fewest bytes read.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..hardware.catalogue import CATALOGUE
from ..hardware.cluster import Cluster, ClusterError, Curve, Device, LinkLevel
from ..hardware.cluster_file import parse_cluster, resized

ALL = "all"  # every part of the catalogue
MOST_DEVICES = 16_384
MOST_POINTS = 10_000
LEAST, MOST = 1e-6, 1e9  # of any value: what lies beyond is a slip, and its times are no numbers
_GIB = 2**30
MATMUL = "device.matmul"
_FACTORS = (MATMUL,)  # rates differ by element type
_SIZES = ("nodes", "devices_per_node", "seq", "global_batch")
# How a figure of a cluster is changed to a value.
_Change = Callable[[Cluster, "Value"], Cluster]


@dataclass(frozen=True)
class Value:
    """A value of a sweep: a number, or a factor."""

    number: float
    is_factor: bool

    def on(self, present: float, unit: float = 1.0) -> float:
        """Return what a figure becomes. unit: of the number, in those of the figure."""
        return present * self.number if self.is_factor else self.number * unit

    def __str__(self) -> str:
        return f"{'x' if self.is_factor else ''}{self.number:g}"


@dataclass(frozen=True)
class Sweep:
    """A name and its values."""

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Point:
    """One question. swept: (name, value) of each sweep, in order."""

    cluster: Cluster
    seq: int
    global_batch: int
    swept: tuple[tuple[str, str], ...] = ()

    @property
    def matmul_factor(self) -> float:
        """Return what the rates of matmuls are swept by, 1 where they are the cluster's own."""
        return float(dict(self.swept).get(MATMUL, "x1").removeprefix("x"))


def specs_of_all(spec: str, least: bool = False) -> list[str]:
    """Return the clusters that `all` stands for, a node of each card of the catalogue; `all:N` has
    N cards of each, in full nodes where one does not hold them, `all:NxM` M nodes of N. What is no
    `all` is itself alone; CPU ranks are left out, and boards of fewer cards. least: without a count
    there is one of 1, 2, 4 and so on of each part, up to a node.

    Raises ClusterError for counts that a node cannot have.
    """
    named, comma, rest = spec.partition(",")
    name, _, counts = named.partition(":")
    if name != ALL:
        return [spec]
    firsts: dict[Device, Cluster] = {}
    for part in CATALOGUE.values():
        firsts.setdefault(part.device, part)
    parts = [part for part in firsts.values() if part.device.type != "cpu"]
    most = max(part.devices_per_node for part in parts).bit_length()
    each = [str(2**n) for n in range(most)] if least and not counts else [counts]
    return [f"{p.name}:{_counts(n, p)}{comma}{rest}" for n in each for p in parts]


def _counts(said: str, part: Cluster) -> str:
    """Return DEVICES or DEVICESxNODES for as many cards of a part; all of a node for none."""
    node = part.devices_per_node
    if not said.isdecimal() or int(said) <= node:
        return said or str(node)
    if int(said) % node:
        raise ClusterError(
            f"cluster {ALL}:{said}: a node of {part.name} holds {node} devices, and {said} fill no "
            f"whole nodes; write {ALL}:{node}xNODES"
        )
    return f"{node}x{int(said) // node}"


def parse_sweep(text: str) -> Sweep:
    """Read NAME=V1,V2. Raises ClusterError with the name or value at fault."""
    name, equals, rest = text.partition("=")
    if not equals or not rest:
        raise ClusterError(f"--sweep {text}: write NAME=VALUE,VALUE, such as nodes=1,2,4")
    if name not in (*_SIZES, *_CHANGES) and not re.fullmatch(_LINK, name):
        raise ClusterError(f"--sweep {name}: unknown; give one of {', '.join(NAMES)}")
    values = tuple(_value(name, item.strip()) for item in rest.split(","))
    if twice := [value for value in values if values.count(value) > 1]:
        raise ClusterError(f"--sweep {text}: {twice[0]} is given twice; give each value once")
    return Sweep(name, values)


def _value(name: str, text: str) -> Value:
    factor = text.startswith("x")
    try:
        number = float(text.removeprefix("x"))
    except ValueError:
        raise ClusterError(
            f"--sweep {name}={text}: give a number, or a factor such as x2"
        ) from None
    if not 0 < number < float("inf"):
        raise ClusterError(f"--sweep {name}={text}: give a number above 0")
    if not LEAST <= number <= MOST:
        raise ClusterError(
            f"--sweep {name}={text}: {number:g} is not from {LEAST:g} to {MOST:g}; give a value "
            "there"
        )
    if name in _SIZES and factor:
        raise ClusterError(
            f"--sweep {name}={text}: {name} takes counts and no factor; give whole numbers, such "
            f"as {name}=1,2"
        )
    if name in _SIZES and number != int(number):
        raise ClusterError(f"--sweep {name}={text}: give a whole number")
    if name in _FACTORS and not factor:
        raise ClusterError(f"--sweep {name}={text}: give a factor such as x2")
    return Value(number, factor)


def points(
    clusters: Sequence[str], sweeps: Sequence[Sweep], seq: int, global_batch: int
) -> list[Point]:
    """Return every cluster at every combination of the sweeps' values, each once.

    Raises ClusterError for a name that is swept twice, too many points or devices, and a cluster
    that has not what is swept.
    """
    _check_once([sweep.name for sweep in sweeps])
    count = len(clusters) * math.prod(len(sweep.values) for sweep in sweeps)
    if count > MOST_POINTS:
        raise ClusterError(f"{count:,} points, at most {MOST_POINTS:,}; sweep fewer values")
    return list(dict.fromkeys(_points(clusters, sweeps, seq, global_batch)))


def _check_once(names: list[str]) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise ClusterError(f"--sweep {twice[0]}: given twice; put all values into one")


def _points(
    clusters: Sequence[str], sweeps: Sequence[Sweep], seq: int, global_batch: int
) -> Iterator[Point]:
    for spec in clusters:
        for values in itertools.product(*(sweep.values for sweep in sweeps)):
            said = {sweep.name: value for sweep, value in zip(sweeps, values, strict=True)}
            sizes = {key: int(said[key].number) for key in _SIZES if key in said}
            cluster = _changed(_sized(spec, sizes), said)
            rows = sizes.get("seq", seq), sizes.get("global_batch", global_batch)
            yield Point(cluster, *rows, tuple((name, str(value)) for name, value in said.items()))


def _sized(spec: str, sizes: dict[str, int]) -> Cluster:
    """Return the cluster with as many nodes and devices as are swept, else its own."""
    cluster = parse_cluster(spec)
    if "nodes" in sizes or "devices_per_node" in sizes:
        per_node = sizes.get("devices_per_node", cluster.devices_per_node)
        cluster = resized(spec, per_node, sizes.get("nodes", cluster.nodes))
    if cluster.num_devices > MOST_DEVICES:
        raise ClusterError(
            f"cluster {cluster.name}: {cluster.num_devices:,} devices, at most {MOST_DEVICES:,}"
        )
    return cluster


def with_figures(cluster: Cluster, sweeps: Sequence[Sweep]) -> Cluster:
    """Return a cluster with the first value of each sweep of its figures."""
    return _changed(cluster, {sweep.name: sweep.values[0] for sweep in sweeps})


def _changed(cluster: Cluster, said: dict[str, Value]) -> Cluster:
    figures = {name: value for name, value in said.items() if name not in _SIZES}
    for name, value in figures.items():
        change = _CHANGES.get(name) or _of_link(cluster, name)
        cluster = replace(change(cluster, value), name=f"{cluster.name},{name}={value}")
    return cluster


def _of_device(field: str, unit: float) -> _Change:
    def change(cluster: Cluster, value: Value) -> Cluster:
        device = cluster.device
        present = getattr(device, field)
        changed = replace(device, **{field: type(present)(value.on(present, unit))})
        return replace(cluster, device=changed)

    return change


def _of_host(field: str, unit: float) -> _Change:
    def change(cluster: Cluster, value: Value) -> Cluster:
        present = getattr(cluster, field)
        return replace(cluster, **{field: type(present)(value.on(present, unit))})

    return change


def _matmul(cluster: Cluster, value: Value) -> Cluster:
    """Scale matmuls of every type, and attention."""
    device, factor = cluster.device, value.number
    pair = device.attention_flops_per_s
    changed = replace(
        device,
        matmul_flops_per_s=tuple((k, factor * rate) for k, rate in device.matmul_flops_per_s),
        attention_flops_per_s=pair and (factor * pair[0], factor * pair[1]),
        attention_readings=tuple(
            replace(r, forward=factor * r.forward, backward=factor * r.backward)
            for r in device.attention_readings
        ),
    )
    return replace(cluster, device=changed)


_CHANGES: dict[str, _Change] = {
    "device.memory_gb": _of_device("memory_bytes", _GIB),
    MATMUL: _matmul,
    "device.bandwidth": _of_device("hbm_bytes_per_s", 1e9),
    "device.launch_us": _of_device("launch_us", 1.0),
    "device.call_us": _of_device("call_us", 1.0),
    "host.memory_gb": _of_host("host_memory_bytes", _GIB),
    "host.bandwidth": _of_host("host_link_bytes_per_s", 1e9),
}
_LINK = r"link\.(.+)\.(bandwidth|latency)"
NAMES = (*_SIZES, *_CHANGES, "link.NAME.bandwidth", "link.NAME.latency")


def _of_link(cluster: Cluster, name: str) -> _Change:
    """Return the change of a link by its name: bandwidth in GB/s, or latency in us."""
    match = re.fullmatch(_LINK, name)
    assert match is not None
    wanted, what = match.groups()
    if wanted not in {level.name for level in cluster.levels}:
        raise _unknown_link(cluster, name, wanted)
    made = _faster if what == "bandwidth" else _later

    def change(cluster: Cluster, value: Value) -> Cluster:
        levels = (made(v, value) if v.name == wanted else v for v in cluster.levels)
        return replace(cluster, levels=tuple(levels))

    return change


def _unknown_link(cluster: Cluster, name: str, wanted: str) -> ClusterError:
    known = ", ".join(level.name for level in cluster.levels)
    return ClusterError(
        f"--sweep {name}: cluster {cluster.name} has no link {wanted!r}; it has {known}"
    )


def _faster(level: LinkLevel, value: Value) -> LinkLevel:
    rate = value.on(level.bytes_per_s, 1e9)
    factor = rate / level.bytes_per_s
    # The time above that of the fewest bytes follows the rate; some readings are below it.
    return replace(
        level,
        bytes_per_s=rate,
        curves=_curves(level, lambda us, first: us + max(us - first, 0.0) * (1 / factor - 1)),
    )


def _later(level: LinkLevel, value: Value) -> LinkLevel:
    alpha = value.on(level.alpha_us)
    more = alpha - level.alpha_us
    return replace(level, alpha_us=alpha, curves=_curves(level, lambda us, _: max(us + more, 1e-3)))


def _curves(level: LinkLevel, change: Callable[[float, float], float]) -> tuple[Curve, ...]:
    """Return the level's curves with times changed. change: of (us, us of the fewest bytes)."""
    return tuple(
        replace(curve, points=tuple((b, change(us, curve.points[0][1])) for b, us in curve.points))
        for curve in level.curves
    )
