"""Splitting a backward in two: I makes the input's gradient, W the weights'.

W takes what no input gradient waits for and costs a matmul: gradients of weights and embeddings,
and what is made of those. Everything else stays in I: attention, norms, sums for vectors, and what
is computed again. Where a fused op makes a weight's gradient beside the input's (linear and
cross-entropy), and nothing else is left for W, the backward is not split.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .graph import Graph, Op
from .ops.table import MATMULS

DEFERRED = frozenset({*MATMULS, "mw.embedding_weight_grad"})


def forward_ops(graph: Graph) -> tuple[Op, ...]:
    """Ops that the piece's output needs, in order."""
    needed = {graph.outputs[0]}
    kept = []
    for op in reversed(graph.ops):
        if any(v.name in needed for v in op.outputs):
            kept.append(op)
            needed.update(op.inputs)
    return tuple(reversed(kept))


@dataclass(frozen=True)
class Split:
    """Ops of both parts in order. handed: values that I gives to W, gradients it made included."""

    input_grad: tuple[Op, ...]
    weight_grad: tuple[Op, ...]
    handed: tuple[str, ...]


def split_backward(
    graph: Graph, backward: Sequence[Op], recomputed: frozenset[str]
) -> Split | None:
    """The parts of a joint graph's backward ops; None where W would be empty.

    recomputed: names of forward values among them.
    """
    for_dx = _ancestors(backward, graph.outputs[1])
    later: set[str] = set()
    for op in backward:
        free = op.output.name not in recomputed and op.output.name not in for_dx
        if free and (op.target in DEFERRED or later & set(op.inputs)):
            later |= {v.name for v in op.outputs}
    if not later:
        return None
    first = tuple(op for op in backward if op.output.name not in later)
    second = tuple(op for op in backward if op.output.name in later)
    read = [n for op in second for n in op.inputs] + list(graph.outputs[2:])
    handed = tuple(dict.fromkeys(n for n in read if n and n not in later))
    return Split(first, second, handed)


def _ancestors(ops: Sequence[Op], name: str) -> set[str]:
    """Names of first outputs of the ops that a value needs, its own included."""
    wanted, found = {name}, set()
    for op in reversed(ops):
        if any(v.name in wanted for v in op.outputs):
            wanted |= set(op.inputs)
            found.add(op.output.name)
    return found
