"""Phases: the functions that a segment has, derived once from its joint graph and what it keeps.

The forward makes the outputs and what is kept. The backward starts from parameters, kept values and
the incoming gradients, and computes again what was not kept, right before its first reader. The
planner prices these graphs, codegen prints them, the memory model walks them.

A backward may run in two: I makes the inputs' gradients, W the weights'. W takes what no input
gradient waits for and costs a matmul: gradients of weights and embeddings, and what is made of
those. Everything else stays in I: attention, norms, sums for vectors, and what is computed again.
Where a fused op makes a weight's gradient beside the input's (linear and cross-entropy), and
nothing else is left for W, the backward is not split.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from .graph import Graph, Input, Op, Value
from .ops.questions import added_where_made, without_passing
from .ops.registry import definition


@dataclass(frozen=True)
class Joint:
    """The results of a joint graph by name; "" stands for a gradient that does not exist.

    Outputs of the graph: those of the segment, the gradient of each activation input ("" where
    there is none to have one), then the gradient of each parameter, all in input order.
    """

    graph: Graph

    @cached_property
    def _ends(self) -> tuple[int, int]:
        """Positions behind the segment's outputs, and behind the gradients of activations."""
        params = len(self.graph.inputs_of("param"))
        ends = len(self.graph.outputs) - params
        return ends - max(1, len(self.graph.inputs_of("activation"))), ends

    @property
    def ys(self) -> tuple[str, ...]:
        """Names of the segment's outputs."""
        return self.graph.outputs[: self._ends[0]]

    @property
    def loss(self) -> str:
        """Name of the loss, whose own gradient is 1 and does not come in; "" where there is none.

        It is the first output. What comes in are the gradients of the others.
        """
        return self.ys[0] if len(self.graph.inputs_of("grad")) < len(self.ys) else ""

    @property
    def dxs(self) -> tuple[str, ...]:
        """Names of the gradients of the activation inputs; ("",) where there is no such input."""
        return self.graph.outputs[slice(*self._ends)]

    @cached_property
    def grads(self) -> dict[str, str]:
        """Names of gradients by the input name of their parameter, in input order."""
        params = [i.value.name for i in self.graph.inputs_of("param")]
        return dict(zip(params, self.graph.outputs[self._ends[1] :], strict=True))

    @cached_property
    def made_grads(self) -> tuple[str, ...]:
        """Names of the gradients of parameters that exist."""
        return tuple(name for name in self.grads.values() if name)

    @property
    def results(self) -> tuple[str, ...]:
        """Names of what backward makes: gradients of activation inputs and of parameters."""
        return tuple(name for name in (*self.dxs, *self.grads.values()) if name)

    def values(self, kind: str) -> tuple[Value, ...]:
        """The inputs of a kind ("activation", "grad", ...)."""
        return tuple(i.value for i in self.graph.inputs_of(kind))


def forward_ops(graph: Graph) -> tuple[Op, ...]:
    """Ops that the piece's outputs need, in order."""
    return tuple(_needed(graph, set(Joint(graph).ys), set()))


@dataclass(frozen=True)
class Halves:
    """A backward in two. handed: values that I gives to W, gradients that I made included."""

    input_grad: Graph
    weight_grad: Graph
    handed: tuple[str, ...]


@dataclass(frozen=True)
class Phases:
    """The functions of a segment under its saved values.

    joint: without the values that backward can do without, unless they are saved. forward makes
    the outputs and the saved values; backward the gradients. kept: names that forward hands to
    backward, the segment's own inputs first where backward reads them. given: data and context that
    backward reads. recomputed: names of forward values (of the ops that make them, the first
    output) that backward makes again.
    """

    joint: Joint
    forward: Graph
    backward: Graph
    kept: tuple[str, ...]
    given: tuple[str, ...]
    recomputed: frozenset[str]

    @cached_property
    def again(self) -> tuple[Op, ...]:
        """Ops of the backward that compute forward values."""
        return tuple(op for op in self.backward.ops if op.output.name in self.recomputed)

    @cached_property
    def halves(self) -> Halves | None:
        """The backward's I and W; None where W would be empty."""
        late = _late(self.joint, self.backward.ops, self.recomputed)
        if not late:
            return None
        first = [op for op in self.backward.ops if op.output.name not in late]
        second = [op for op in self.backward.ops if op.output.name in late]
        read = [n for op in second for n in op.inputs] + list(self.joint.grads.values())
        handed = tuple(dict.fromkeys(n for n in read if n and n not in late))
        graph, dxs = self.joint.graph, tuple(filter(None, self.joint.dxs))
        grads = tuple(n for n in self.joint.made_grads if n in late)
        return Halves(
            _function(graph, first, dxs + handed),
            _function(graph, second, grads),
            handed,
        )

    def added(self, split: bool) -> frozenset[str]:
        """Gradients that the ops which make them can add to their buffers.

        split: the backward runs in two; what I makes is added by W, which does not make it.
        """
        graph = self.joint.graph
        adds = frozenset(n for n in self.joint.made_grads if added_where_made(graph, n))
        if not split or self.halves is None:
            return adds
        return adds & {v.name for op in self.halves.weight_grad.ops for v in op.outputs}


def phases_of(graph: Graph, saved: tuple[str, ...]) -> Phases:
    """The functions of a joint graph that keeps `saved` for its backward."""
    joint = Joint(without_passing(graph, saved))
    graph = joint.graph
    forward = _needed(graph, set(joint.ys), set())
    made = {v.name for op in forward for v in op.outputs}
    given = {i.value.name for i in graph.inputs} | set(saved)
    results = joint.results
    backward = _ordered(_needed(graph, set(results), given), made, results)
    read = {n for op in backward for n in op.inputs} | set(results)
    entry = tuple(v.name for v in joint.values("activation") if v.name in read)
    operands = (*joint.values("data"), *joint.values("context"))
    return Phases(
        joint,
        _function(graph, forward, (*joint.ys, *saved)),
        _function(graph, backward, results),
        entry + saved,
        tuple(v.name for v in operands if v.name in read),
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


def _ordered(ops: list[Op], forward_made: set[str], results: tuple[str, ...]) -> list[Op]:
    """Recomputed ops right before their first reader, so that they live shortly."""
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
    for name in results:
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


def _late(joint: Joint, backward: Sequence[Op], recomputed: frozenset[str]) -> set[str]:
    """Names of values that W makes."""
    for_dx = _ancestors(backward, joint.dxs)
    late: set[str] = set()
    for op in backward:
        free = op.output.name not in recomputed and op.output.name not in for_dx
        if free and (definition(op).deferred or late & set(op.inputs)):
            late |= {v.name for v in op.outputs}
    return late


def _ancestors(ops: Sequence[Op], names: Sequence[str]) -> set[str]:
    """Names of first outputs of the ops that values need, their own included."""
    wanted, found = set(names), set()
    for op in reversed(ops):
        if any(v.name in wanted for v in op.outputs):
            wanted |= set(op.inputs)
            found.add(op.output.name)
    return found
