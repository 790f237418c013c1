"""The choices of a sharding problem: one node per op, input and output of a joint graph.

A node makes values, reads values, and offers strategies, each with a price. Three kinds beside
ops: a *param* makes the parameter and reads its gradient, so both are chosen together; a *cut*
makes what comes in over a segment boundary and reads what goes out over it, in the layout that the
boundary has; a *given* makes data and context, whole on every rank.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from meshwright.ir.graph import Graph, Input, Value
from meshwright.ir.mesh import CONTEXT, TENSOR, Mesh
from meshwright.ir.ops.registry import definition
from meshwright.ir.phases import Joint
from meshwright.ir.placement import Placement, format_placement, replicated, with_partial

from ..cost.graph_work import GraphWork
from ..cost.op_cost import Costs
from .boundary_layouts import Layout, uncut
from .strategies import Strategy, axes_of, strategies_of
from .strides import alone_of, strides_of
from .sub_axes import whole_attention_note


@dataclass(frozen=True)
class Choice:
    """One strategy of a node and what it costs: us of time, resident bytes."""

    strategy: Strategy
    us: float
    bytes: float = 0.0


@dataclass(frozen=True)
class Node:
    """A node of the problem. reads, makes: value names, placed by every choice in these orders."""

    name: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    choices: tuple[Choice, ...]
    backward: bool = False


@dataclass(frozen=True)
class Demands:
    """The placements that a segment's neighbours and pins ask for.

    boundary_in, boundary_out: of the values that cross the cuts, in order; () leaves them whole.
    param_pins, grad_pins: by input name, the placement of a parameter and of its gradient.
    shard_matmul_weights: whether matmul weights stay sharded, also where ops read them.
    mirrored: context axes cut the sequence in mirrored shards.
    """

    boundary_in: Layout = ()
    boundary_out: Layout = ()
    param_pins: tuple[tuple[str, Placement], ...] = ()
    grad_pins: tuple[tuple[str, Placement], ...] = ()
    shard_matmul_weights: bool = False
    num_microbatches: int = 1
    mirrored: bool = False


@dataclass(frozen=True)
class Offers:
    """The strategies of the ops of a graph, in order, and coverage lines."""

    strategies: tuple[tuple[Strategy, ...], ...]
    coverage: tuple[str, ...]


@dataclass(frozen=True)
class Ops:
    """The nodes of the ops of a graph, in order, which no demand but `mirrored` changes; and
    coverage lines."""

    nodes: tuple[Node, ...]
    coverage: tuple[str, ...]


def nodes_of(
    graph: Graph, costs: Costs, demands: Demands, ops: Ops | None = None
) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    """All nodes of a joint graph, inputs first, ops in order, then cuts; and coverage lines.

    ops: what `ops_of` returns, where it is known.
    """
    ops = ops or ops_of(graph, costs, demands.mirrored)
    grads = _gradients(graph)
    given = [i for i in graph.inputs if i.kind in ("data", "context", "constant")]
    nodes = [_given(i, costs, demands.mirrored) for i in given]
    for item in graph.inputs_of("param"):
        wanted = _wanted(item.value.name, ops.nodes)
        nodes.append(_param(graph, item, grads.get(item.value.name, ""), wanted, costs, demands))
    return (*nodes, *ops.nodes, *_cuts(graph, costs, demands)), ops.coverage


def ops_of(graph: Graph, costs: Costs, mirrored: bool, offers: Offers | None = None) -> Ops:
    """Return the nodes of a graph's ops. mirrored: context axes cut mirrored shards. offers: what
    `offers_of` returns, where it is known."""
    offers = offers or offers_of(graph, costs.mesh, costs.sizes, mirrored)
    work, nodes = GraphWork(graph), []
    for op, offered in zip(graph.ops, offers.strategies, strict=True):
        moved = work.of[op.output.name]
        choices = [Choice(s, costs.op_us(op, s.inputs, s.outputs, moved)) for s in offered]
        reads, makes = tuple(n for n in op.inputs if n), tuple(v.name for v in op.outputs)
        name = f"{op.target} %{op.output.name}"
        nodes.append(Node(name, reads, makes, tuple(choices), work.is_backward(op)))
    return Ops(tuple(nodes), offers.coverage)


def offers_of(
    graph: Graph,
    mesh: Mesh,
    sizes: dict[str, int],
    mirrored: bool,
    whole_sequence: bool = False,
) -> Offers:
    """Return the strategies of a graph's ops, whatever they cost."""
    axes = axes_of(mesh, sizes, mirrored, whole_sequence)
    strides = {axis.name: strides_of(graph, axis) for axis in axes}
    alone = alone_of(graph, axes)
    strategies, coverage = [], []
    for index, op in enumerate(graph.ops):
        extra = {
            name: [(f, b) for (k, f), found in asked.items() if k == index for b in found]
            for name, asked in strides.items()
        }
        offered, warning = strategies_of(op, graph, axes, extra, alone.get(index, ()))
        warning = warning or whole_attention_note(op, graph, offered, mesh)
        coverage += [warning] if warning else []
        strategies.append(tuple(offered))
    return Offers(tuple(strategies), tuple(coverage))


def _gradients(graph: Graph) -> dict[str, str]:
    """Name of the gradient of each parameter, by input name."""
    return {param: grad for param, grad in Joint(graph).grads.items() if grad}


def _wanted(name: str, ops: tuple[Node, ...]) -> tuple[Placement, ...]:
    """Sharded placements that some strategy reads `name` in."""
    found: dict[Placement, None] = {}
    for node in ops:
        for position, read in enumerate(node.reads):
            if read == name:
                found.update((c.strategy.inputs[position], None) for c in node.choices)
    return tuple(p for p in found if p.dims != ((),) * len(p.dims) and not p.partial)


def _given(item: Input, costs: Costs, mirrored: bool) -> Node:
    """Data that has a sequence comes cut by context axes; all else is whole on every rank."""
    value = item.value
    placed = replicated(len(value.shape))
    if item.kind == "data":
        placed = uncut(value, costs.mesh, costs.sizes, mirrored)
    choice = Choice(Strategy("replicated", (), (placed,)), 0.0)
    return Node(f"input %{value.name}", (), (value.name,), (choice,))


def _param(
    graph: Graph,
    item: Input,
    grad: str,
    wanted: Iterable[Placement],
    costs: Costs,
    demands: Demands,
) -> Node:
    """A parameter with its gradient: equal shards, or whole with a whole or partial one."""
    value = item.value
    whole = replicated(len(value.shape))
    pin, grad_pin = (
        dict(demands.param_pins).get(value.name),
        dict(demands.grad_pins).get(value.name),
    )
    shards = [p for p in wanted if pin is None or p == pin]
    if pin is not None and pin != whole:
        shards = [pin]
    must = demands.shard_matmul_weights and is_matmul_weight(graph, value.name) and shards
    placed = [] if must or (pin is not None and pin != whole) else [(whole, whole)]
    placed += [(shard, shard) for shard in shards]
    if grad:  # summed once a step over the tensor axes that do not cut it
        tensor = costs.mesh.names(TENSOR)
        both = [pair for p, g in placed for pair in ((p, g), (p, _partial_over(p, tensor)))]
        placed = list(dict.fromkeys(both))
    for axis in costs.mesh.names(CONTEXT) if grad else ():  # summed where it is stored
        placed = [(p, with_partial(g, axis, "sum")) for p, g in placed] + placed
    choices = [
        _param_choice(item, p, g, costs, demands)
        for p, g in placed
        if grad_pin is None or not grad or g == grad_pin
    ]
    reads = (grad,) if grad else ()
    kept = tuple(c if grad else Choice(_without_grad(c), c.us, c.bytes) for c in choices)
    return Node(f"param %{value.name}", reads, (value.name,), kept, True)


def _partial_over(placement: Placement, axes: tuple[str, ...]) -> Placement:
    """The placement, made partial over every axis that does not cut it."""
    for axis in axes:
        if placement.shard(axis) is None:
            placement = with_partial(placement, axis, "sum")
    return placement


def _without_grad(choice: Choice) -> Strategy:
    return Strategy(choice.strategy.name, (), choice.strategy.outputs)


def is_matmul_weight(graph: Graph, name: str) -> bool:
    """Whether a matmul multiplies by a value or a view of it, as of a weight stored [in, out]."""
    return any(
        definition(op).matmul_weight
        or (definition(op).free and is_matmul_weight(graph, op.output.name))
        for op in graph.users[name]
    )


def _param_choice(
    item: Input, placed: Placement, grad: Placement, costs: Costs, demands: Demands
) -> Choice:
    us = grad_us(item.value, grad, costs, demands.num_microbatches)
    return Choice(
        Strategy(format_placement(grad), (grad,), (placed,)), us, param_bytes(item, placed, costs)
    )


def param_bytes(item: Input, placement: Placement, costs: Costs) -> float:
    """Resident bytes of a parameter: weight, gradient and two moments, in the parameter's dtype;
    of a frozen one the weight alone."""
    return (4 if item.trainable else 1) * costs.local_bytes(item.value, placement)


def grad_us(value: Value, grad: Placement, costs: Costs, num_microbatches: int) -> float:
    """A gradient that is partial along tensor is reduced once a step: its share of one
    micro-batch. Along context it is reduced with storage, which the step model prices."""
    axes = [a for a in costs.mesh.names(TENSOR) if grad.partial_op(a) is not None]
    size = costs.local_bytes(value, grad)
    return costs.collective_us("all_reduce", size, *axes) / num_microbatches if axes else 0.0


def _cuts(graph: Graph, costs: Costs, demands: Demands) -> list[Node]:
    """Boundary nodes: what comes in over a cut, and what goes out over it."""
    nodes = []
    joint = Joint(graph)
    for kind, given, reads in (
        ("activation", demands.boundary_in, joint.dxs),
        ("grad", demands.boundary_out, joint.ys[bool(joint.loss) :]),
    ):
        items = graph.inputs_of(kind)
        layout = given or [uncut(i.value, costs.mesh, costs.sizes, demands.mirrored) for i in items]
        for item, read, placed in zip(items, reads, layout, strict=False):
            text = format_placement(placed)
            strategy = Strategy(text, (placed,) if read else (), (placed,))
            name = item.value.name
            nodes.append(
                Node(f"cut %{name}", (read,) if read else (), (name,), (Choice(strategy, 0.0),))
            )
    if joint.loss:
        loss = Choice(Strategy("loss", (replicated(0),), ()), 0.0)
        nodes.append(Node(f"output %{joint.loss}", (joint.loss,), (), (loss,)))
    return nodes
