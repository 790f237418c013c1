"""The functions of a piece as graphs: what runs forward, and what runs backward, whole or in two.

The forward makes the output and what is kept; the backward starts from parameters, kept values and
the incoming gradient, and computes again what was not kept, right before its first reader, as the
emitted program does. Their costs and live values are then read off like those of any graph.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

from meshwright.ir.graph import Graph, Input, Op
from meshwright.ir.ops.table import FREE, without_passing
from meshwright.ir.phases import split_backward
from meshwright.ir.placement import Placement

from .op_cost import GraphWork


@dataclass(frozen=True)
class Functions:
    """Forward and backward of one piece.

    kept: names that forward hands to backward, the piece's own input first where backward reads
    it. gradients: outputs of the backward that are parameters' gradients. recomputed: names of
    forward values that the backward makes again.
    """

    forward: Graph
    backward: Graph
    kept: tuple[str, ...]
    gradients: frozenset[str]
    placements: dict[str, Placement]
    recomputed: frozenset[str]

    def halves(self, joint: Graph) -> tuple[Graph, Graph] | None:
        """The backward's I and W as graphs; None where it is not split. I's outputs: d_x and what
        it hands to W. joint: the graph that the functions were made of."""
        split = split_backward(joint, self.backward.ops, self.recomputed)
        if split is None:
            return None
        dx = joint.outputs[1]
        first = _function(joint, list(split.input_grad), ((dx,) if dx else ()) + split.handed)
        made = {v.name for op in split.weight_grad for v in op.outputs}
        grads = tuple(n for n in joint.outputs[2:] if n in made)
        return first, _function(joint, list(split.weight_grad), grads)


class PhaseWork(GraphWork):
    """Work of a graph that is one function: no value crosses from forward to backward."""

    def is_backward(self, op: Op) -> bool:
        return False

    @cached_property
    def materialised(self) -> frozenset[str]:
        """Values that are written to memory; the rest live in registers of a fused kernel."""
        return frozenset(
            v.name
            for op in self.graph.ops
            if op.target not in FREE
            for v in self.of[op.output.name].results
            if v is not None
        )

    def storage(self, name: str) -> str:
        """The value whose memory `name` is a view of, or itself."""
        while (op := self.graph.producer.get(name)) is not None and op.target in FREE:
            name = op.inputs[0]
        return name


@dataclass(frozen=True)
class Phases:
    """The functions of a piece with what is the same at all sizes: what their ops do, and which
    storages they share. again: ops of the backward that compute forward values."""

    joint: Graph
    functions: Functions
    forward: PhaseWork
    backward: PhaseWork
    again: tuple[Op, ...]

    @cached_property
    def halves(self) -> tuple[PhaseWork, PhaseWork] | None:
        """The backward's I and W; None where it is not split."""
        halves = self.functions.halves(self.joint)
        return halves and (PhaseWork(halves[0]), PhaseWork(halves[1]))


class _Same:
    """A key by identity, which keeps its object."""

    def __init__(self, item: object) -> None:
        self.item = item

    def __hash__(self) -> int:
        return id(self.item)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.item is other.item


def phases_of(graph: Graph, placements: dict[str, Placement], saved: tuple[str, ...]) -> Phases:
    """Of a lowered joint graph under its saved values; made once."""
    return _phases_of(_Same(graph), _Same(placements), saved)


@lru_cache(maxsize=1024)
def _phases_of(graph: _Same, placements: _Same, saved: tuple[str, ...]) -> Phases:
    whole: Graph = graph.item  # type: ignore[assignment]
    joint = without_passing(whole, saved)
    functions = functions_of(joint, placements.item, saved)  # type: ignore[arg-type]
    made = {v.name for op in functions.forward.ops for v in op.outputs}
    again = tuple(op for op in functions.backward.ops if op.output.name in made)
    phases = PhaseWork(functions.forward), PhaseWork(functions.backward)
    return Phases(joint, functions, *phases, again)


def functions_of(
    graph: Graph, placements: dict[str, Placement], saved: tuple[str, ...]
) -> Functions:
    """The functions of a lowered joint graph under its saved values."""
    graph = without_passing(graph, saved)
    forward = _needed(graph, {graph.outputs[0]}, set())
    made = {v.name for op in forward for v in op.outputs}
    gradients = {n for n in graph.outputs[1:] if n}
    given = {i.value.name for i in graph.inputs} | set(saved)
    backward = _ordered(_needed(graph, gradients, given), made, graph.outputs[1:])
    read = {n for op in backward for n in op.inputs} | gradients
    entry = tuple(i.value.name for i in graph.inputs_of("activation") if i.value.name in read)
    kept = entry + tuple(saved)
    return Functions(
        _function(graph, forward, (graph.outputs[0], *saved)),
        _function(graph, backward, tuple(n for n in graph.outputs[1:] if n)),
        kept,
        frozenset(n for n in graph.outputs[2:] if n),
        placements,
        frozenset(op.output.name for op in backward if op.output.name in made),
    )


def _needed(graph: Graph, wanted: set[str], given: set[str]) -> list[Op]:
    """Ops that make `wanted` from `given`, in the graph's order."""
    wanted, kept = wanted - given, []
    for op in reversed(graph.ops):
        if any(v.name in wanted for v in op.outputs):
            kept.append(op)
            wanted |= set(op.inputs) - given
    return kept[::-1]


def _ordered(ops: list[Op], forward_made: set[str], outputs: tuple[str, ...]) -> list[Op]:
    """Recomputed ops right before their first reader."""
    producer = {v.name: op for op in ops for v in op.outputs}
    order: dict[str, Op] = {}

    def place(op: Op) -> None:
        if op.output.name not in order:
            for name in op.inputs:
                if name in producer:
                    place(producer[name])
            order[op.output.name] = op

    for op in ops:
        if op.output.name not in forward_made:
            place(op)
    for name in outputs:
        if name in producer:
            place(producer[name])
    return list(order.values())


def _function(graph: Graph, ops: list[Op], outputs: tuple[str, ...]) -> Graph:
    """A graph of `ops` alone; what it reads from elsewhere becomes an input."""
    made = {v.name for op in ops for v in op.outputs}
    kinds = {i.value.name: i.kind for i in graph.inputs}
    read = dict.fromkeys(n for op in ops for n in op.inputs if n and n not in made)
    read.update(dict.fromkeys(n for n in outputs if n not in made))
    inputs = tuple(Input(graph.values[n], kinds.get(n, "activation")) for n in read)
    return Graph(graph.name, inputs, tuple(ops), outputs)
