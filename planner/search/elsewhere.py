"""Clusters of the catalogue that a plan may be looked for on, where its own is too small."""

from collections.abc import Iterator

from meshwright.ir.sizes import num_elements

from ..cost.counts import number
from ..hardware.catalogue import CATALOGUE
from ..hardware.cluster import Cluster
from ..hardware.cluster_file import parse_cluster
from ..hardware.usable import usable_bytes
from .problem import Problem


def states_by_kind(problem: Problem) -> dict[str, float]:
    """Return bytes of all parameters, and of gradients and optimizer state where they train."""
    p, params = problem.precision, problem.traced.graph.inputs_of("param")
    counts = [(i.trainable, number(num_elements(i.value.shape), {})) for i in params]
    trained = sum(count for trains, count in counts if trains)
    return {
        "optimizer": p.state * trained,
        "gradients": p.grad * trained,
        "parameters": p.param * sum(count for _, count in counts),
    }


def states_bytes(problem: Problem) -> float:
    """Return bytes of all parameters and of their states."""
    return sum(states_by_kind(problem).values())


def overfull(problem: Problem, cluster: Cluster | None = None) -> bool:
    """Return whether what the states take is more than all devices hold together. cluster: other
    than the problem's own."""
    cluster = cluster or problem.cluster
    return states_bytes(problem) > usable_bytes(cluster) * cluster.num_devices


def larger(cluster: Cluster) -> Iterator[Cluster]:
    """Twice, four times and so on as many of a catalogue's devices, up to 4096 times."""
    model = CATALOGUE.get(cluster.name.partition(":")[0])
    if model is None or model.device != cluster.device:
        return
    for times in (2**n for n in range(1, 13)):
        count, node = times * cluster.num_devices, model.devices_per_node
        if count <= node:
            yield parse_cluster(f"{model.name}:{count}")
        elif count % node == 0:
            yield parse_cluster(f"{model.name}:{node}x{count // node}")


def other_devices(cluster: Cluster) -> Iterator[Cluster]:
    """Clusters of as many devices of a kind that has more memory, the least more first."""
    device, per_node = cluster.device, cluster.devices_per_node
    parts = (
        part
        for part in CATALOGUE.values()
        if part.device.type == device.type
        and part.device.memory_bytes > device.memory_bytes
        and part.devices_per_node >= per_node
    )
    nodes = f"x{cluster.nodes}" if cluster.nodes > 1 else ""
    for part in sorted(parts, key=lambda part: part.device.memory_bytes):
        yield parse_cluster(f"{part.name}:{per_node}{nodes}")
