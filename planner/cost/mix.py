"""The shares of matmuls and attention in a step, from which the clock of matmuls follows."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from meshwright.ir.graph import Graph, Op
from meshwright.ir.mesh import Mesh
from meshwright.ir.ops.registry import definition
from meshwright.ir.placement import replicated
from meshwright.ir.plan import Plan
from meshwright.ir.traced import Traced

from ..hardware.cluster import Cluster, Device
from .graph_work import GraphWork
from .load import Rate
from .op_cost import Costs

_ROWS = 64  # of a micro-batch: more blocks than multiprocessors


@dataclass(frozen=True)
class Mix:
    """Flops of matmuls and of fused attention, forward and backward, by the rate of each."""

    flops: tuple[tuple[Rate, float], ...] = ()

    def attention_share(self, device: Device) -> float:
        """Return the share of the time of matmuls and attention that attention takes."""
        busy = {False: 0.0, True: 0.0}
        for rate, flops in self.flops:
            busy[rate.attention is not None] += flops / rate.on(device)
        return busy[True] / (sum(busy.values()) or 1.0)

    def on(self, cluster: Cluster) -> Cluster:
        """Return the cluster with the clock of its devices in a step of this mix."""
        device = cluster.device
        if not device.clock_gain:
            return cluster
        share = self.attention_share(replace(device, clock=1.0))
        return replace(cluster, device=device.at_clock(share))


def mix_of(graphs: Mapping[str, Graph], uses: Iterable[str], seq: int, cluster: Cluster) -> Mix:
    """Return the mix of a model's joint graphs on devices of the cluster's type; empty where power
    does not limit the clock.

    uses: the name of the graph of each segment instance. seq: tokens of a row.
    """
    if not cluster.device.clock_gain:
        return Mix()
    costs = Costs(cluster.rates, Mesh(()), {"B": _ROWS, "S": seq})
    total = defaultdict[Rate, float](float)
    for name, times in sorted(Counter(uses).items()):
        for rate, flops in _asked(graphs[name], costs):
            total[rate] += times * flops
    return Mix(tuple(total.items()))


def mix_of_model(traced: Traced, seq: int, cluster: Cluster) -> Mix:
    """Return the mix of a captured model."""
    uses = (instance.segment for instance in traced.segmented.instances)
    return mix_of(traced.joints, uses, seq, cluster)


def mix_of_plan(plan: Plan, cluster: Cluster) -> Mix:
    """Return the mix of a plan's pieces."""
    graphs = {piece.name: piece.graph for piece in plan.pieces}
    return mix_of(graphs, (item.piece for item in plan.instances), plan.seq, cluster)


def _asked(graph: Graph, costs: Costs) -> Iterable[tuple[Rate, float]]:
    """Give the rates and flops of a graph's matmuls and attention on one device."""
    work = GraphWork(graph)
    for op in graph.ops:
        if definition(op).lane in ("matmul", "attention"):
            load = costs.load(op, *_whole(op, graph), work.of[op.output.name])
            if load is not None:
                yield load.rate, load.flops


def _whole(op: Op, graph: Graph) -> tuple[tuple, tuple]:
    ins = tuple(replicated(len(graph.values[name].shape)) for name in op.inputs if name)
    return ins, tuple(replicated(len(value.shape)) for value in op.outputs)
