"""Whether a small model stands for a large one: their captures have the same segments.

Two segments are the same where their ops, wiring, ranks and attributes are, sizes aside.
"""

from collections.abc import Iterable
from typing import TypeAlias

from meshwright.ir.graph import Attr, Graph
from meshwright.ir.traced import Traced

Skeleton: TypeAlias = tuple


def stands_for(small: Traced, large: Traced) -> bool:
    """Return whether every unique segment of either is one of the other, and the context is."""
    return _skeletons(small) == _skeletons(large)


def _skeletons(traced: Traced) -> frozenset[Skeleton]:
    segmented = traced.segmented
    graphs: Iterable[Graph] = (segmented.context, *(s.graph for s in segmented.segments))
    return frozenset(_skeleton(graph) for graph in graphs)


def _skeleton(graph: Graph) -> Skeleton:
    at = {name: number for number, name in enumerate(graph.values)}
    at[""] = -1
    inputs = tuple((i.kind, len(i.value.shape), i.value.dtype) for i in graph.inputs)
    ops = tuple(
        (
            op.target,
            tuple(at[n] for n in op.inputs),
            tuple((v.dtype, len(v.shape)) for v in op.outputs),
            tuple((key, _kind(value)) for key, value in op.attrs),
        )
        for op in graph.ops
    )
    return inputs, ops, tuple(at[n] for n in graph.outputs)


def _kind(value: Attr) -> object:
    """Words and switches of an attribute as they are; in place of a number that it is one."""
    if isinstance(value, tuple):
        return tuple(_kind(item) for item in value)
    if isinstance(value, str | bool) or value is None:
        return value
    return "number"
