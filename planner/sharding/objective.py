"""The cost of a placed graph, recomputed from the graph and its placements alone.

What the sharding ILP minimises, read off a lowered graph: times of its ops and redistributions,
its parameters' resident bytes, the copies of forward values that backward reads. It shares no
state with the solver, so a plan's reported objective can be held against its text.
"""

from dataclasses import dataclass, replace

from meshwright.ir.graph import Graph, Op
from meshwright.ir.ops.registry import definition
from meshwright.ir.phases import Joint
from meshwright.ir.placement import Placement

from ..cost.graph_work import GraphWork
from ..cost.op_cost import Costs
from ..cost.redistribution import held_copy
from .nodes import grad_us, param_bytes


@dataclass(frozen=True)
class Items:
    """Cost by item, in us for times and bytes for resident memory of one rank."""

    op_us: dict[str, float]
    redistribute_us: dict[str, float]
    grad_us: dict[str, float]
    param_bytes: dict[str, float]
    held_bytes: dict[str, float]

    def total_us(self, price: float) -> float:
        times = (self.op_us, self.redistribute_us, self.grad_us)
        resident = sum(self.param_bytes.values()) + sum(self.held_bytes.values())
        return sum(sum(t.values()) for t in times) + price * resident


def objective_us(
    graph: Graph,
    placements: dict[str, Placement],
    costs: Costs,
    price: float,
    num_microbatches: int,
) -> float:
    """The ILP's objective of a lowered graph, in us: time plus resident bytes at the price."""
    return items_of(graph, placements, costs, num_microbatches).total_us(price)


def items_of(
    graph: Graph, placements: dict[str, Placement], costs: Costs, num_microbatches: int
) -> Items:
    """Every cost of a lowered graph by the name of its value."""
    origin = {op.output.name: op.inputs[0] for op in graph.ops if definition(op).collective}
    work = GraphWork(_without_redistributes(graph, origin))
    ops, moves = {}, {}
    for op in graph.ops:
        ins = tuple(placements[n] for n in op.inputs if n)
        outs = tuple(placements[v.name] for v in op.outputs)
        name = op.output.name
        if definition(op).collective:
            moves[name] = costs.redistribute_us(op.output, ins[0], outs[0]) or 0.0
        else:
            ops[name] = costs.op_us(op, ins, outs, work.of[name])
    grads = {
        grad: grad_us(graph.values[param], placements[grad], costs, num_microbatches)
        for param, grad in Joint(graph).grads.items()
        if grad
    }
    resident = {
        i.value.name: param_bytes(i, placements[i.value.name], costs)
        for i in graph.inputs_of("param")
    }
    return Items(ops, moves, grads, resident, _held(graph, origin, work, placements, costs))


def _without_redistributes(graph: Graph, origin: dict[str, str]) -> Graph:
    ops = tuple(
        replace(op, inputs=tuple(_root(n, origin) for n in op.inputs))
        for op in graph.ops
        if not definition(op).collective
    )
    outputs = tuple(_root(n, origin) for n in graph.outputs)
    return Graph(graph.name, graph.inputs, ops, outputs)


def _root(name: str, origin: dict[str, str]) -> str:
    while name in origin:
        name = origin[name]
    return name


def _held(
    graph: Graph,
    origin: dict[str, str],
    work: GraphWork,
    placements: dict[str, Placement],
    costs: Costs,
) -> dict[str, float]:
    """Bytes of the copies that backward ops and parameter gradients read."""
    params = {i.value.name for i in graph.inputs_of("param")}
    found = {}
    for name in _read_in_backward(graph, work):
        root = _root(name, origin)
        copy = held_copy(placements[root], placements[name], costs.mesh)
        kept = name if copy == placements[name] else root
        if root in work.held or (root in params and kept != root):
            found[kept] = costs.local_bytes(graph.values[kept], copy)
    return found


def _read_in_backward(graph: Graph, work: GraphWork) -> set[str]:
    def backward(op: Op) -> bool:
        return not definition(op).collective and work.is_backward(op)

    read = {n for op in graph.ops if backward(op) for n in op.inputs if n}
    return read | set(Joint(graph).made_grads)
