"""What is asked of an op in its graph: its rule, its flops, what it adds or does without.

Pure functions over ops; torch appears nowhere.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeVar

from ..dtypes import FLOATS
from ..graph import Graph, Input, Op, Value
from ..sizes import Size, evaluate
from .definition import Rule
from .implementation import Implementation
from .registry import definition

Item = TypeVar("Item")


def rule_of(op: Op, graph: Graph) -> Rule | None:
    """The op's factor rule, or None for an op without one (it is then replicated)."""
    make = definition(op).factors
    return make(op, [graph.values[name] for name in op.inputs if name]) if make else None


def flops(op: Op, graph: Graph) -> Size:
    """Floating-point operations of the matrix units; 0 for bandwidth-bound ops."""
    return definition(op).flops(op, [graph.values[name].shape for name in op.inputs if name])


def implementation(
    op: Op, graph: Graph, sizes: dict[str, int], device: str
) -> Implementation | None:
    """The implementation that the op's kernel chooses on a type of device, at given B and S."""
    return implementation_of(op, [graph.values[n] for n in op.inputs if n], sizes, device)


def implementation_of(
    op: Op, values: Sequence[Value], sizes: dict[str, int], device: str
) -> Implementation | None:
    """The same for the values of its present operands."""
    dtype = next((v.dtype for v in values if v.dtype in FLOATS), op.output.dtype)
    shapes = [tuple(evaluate(size, sizes) for size in v.shape) for v in values]
    offered = definition(op).implementations
    return next((way for way in offered if way.takes(op, dtype, shapes, device)), None)


def first_draw(graph: Graph) -> int:
    """Return the least number of a dropout in a graph, 0 where there is none."""
    return min((op.attr("number") for op in graph.ops if definition(op).numbered), default=0)


def draws_from(graph: Graph, first: int) -> Graph:
    """The graph, its dropouts counted from `first` on, and as many keys as it reads."""
    if not num_draws(graph):
        return graph
    ops = tuple(_renumbered(op, first) for op in graph.ops)
    inputs = tuple(_with_keys(i, num_draws(graph) - first) for i in graph.inputs)
    return replace(graph, inputs=inputs, ops=ops)


def num_draws(graph: Graph) -> int:
    """Return one more than the largest number of a dropout in a graph, 0 where there is none."""
    return 1 + max((op.attr("number") for op in graph.ops if definition(op).numbered), default=-1)


def _with_keys(item: Input, count: int) -> Input:
    keys = item.kind == "data" and item.ref == "draws"
    return replace(item, value=replace(item.value, shape=(count, 3))) if keys else item


def _renumbered(op: Op, first: int) -> Op:
    if not definition(op).numbered:
        return op
    attrs = dict(op.attrs) | {"number": op.attr("number") - first}
    return replace(op, attrs=tuple(attrs.items()))


def favours_late_queries(op: Op) -> bool:
    """Return whether later queries of an attention see more keys than earlier ones."""
    causal, window = op.attr("causal", True), op.attr("window", 0)
    return definition(op).queries is not None and bool(causal) and not window


def added_where_made(graph: Graph, name: str) -> bool:
    """Return whether the op that makes a parameter's gradient can add it: nothing else reads it."""
    op = graph.producer.get(name)
    position = None if op is None else definition(op).adds
    if op is None or position is None or op.outputs[position].name != name:
        return False
    return not graph.users[name] and graph.outputs.count(name) == 1


def passing(graph: Graph) -> frozenset[str]:
    """Values that exist where they are kept for backward, which does without where they are not."""
    return frozenset(
        v.name for op in graph.ops for v in _last(op.outputs, definition(op).passing_output)
    )


def without_passing(graph: Graph, kept: Collection[str] = ()) -> Graph:
    """The graph without the values of `passing` that are not kept."""
    gone = passing(graph).difference(kept)
    return replace(graph, ops=tuple(_without(op, gone) for op in graph.ops)) if gone else graph


def _without(op: Op, gone: frozenset[str]) -> Op:
    asked = definition(op)
    if gone.intersection(_last(op.inputs, asked.recomputed_operand)):
        return replace(op, inputs=op.inputs[:-1])
    if gone.intersection(v.name for v in _last(op.outputs, asked.passing_output)):
        return replace(op, outputs=op.outputs[:-1])
    return op


def _last(items: tuple[Item, ...], position: int | None) -> tuple[Item, ...]:
    """The item at `position`, which is the last place; none where there is no such item."""
    return () if position is None else items[position:]
