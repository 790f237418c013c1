"""Whether a small model stands for a large one: their captures have the same segments.

Two segments are the same where their ops, wiring, ranks and attributes are, sizes aside. Of a
model that only has fewer of its repeated children, sizes and numbers are the same, too.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TypeAlias

from meshwright.ir.graph import Attr, Graph
from meshwright.ir.traced import Traced

Skeleton: TypeAlias = tuple


def stands_for(small: Traced, large: Traced) -> bool:
    """Return whether every unique segment of either is one of the other, and the context is."""
    return _skeletons(small, _kind, _rank) == _skeletons(large, _kind, _rank)


def shortens(short: Traced, whole: Traced) -> bool:
    """Return whether a model stands for one with more of the same children: besides the segments,
    which of them follow each other and which parameters several share are the same."""
    exact = _skeletons(short, _itself, _itself) == _skeletons(whole, _itself, _itself)
    return exact and _successions(short) == _successions(whole) and _shared(short) == _shared(whole)


def _skeletons(traced: Traced, kind: Callable, size: Callable) -> frozenset[Skeleton]:
    segmented = traced.segmented
    graphs: Iterable[Graph] = (segmented.context, *(s.graph for s in segmented.segments))
    return frozenset(_skeleton(graph, kind, size) for graph in graphs)


def _skeleton(graph: Graph, kind: Callable, size: Callable) -> Skeleton:
    """The graph without names. kind, size: what counts of an attribute, and of a shape.

    A constant that it only hands on, as the context does with one of each layer, does not count.
    """
    read = {name for op in graph.ops for name in op.inputs}
    unread = {i.value.name for i in graph.inputs_of("constant")} - read
    at = {name: number for number, name in enumerate(n for n in graph.values if n not in unread)}
    at[""] = -1
    inputs = tuple(
        (i.kind, size(i.value.shape), i.value.dtype)
        for i in graph.inputs
        if i.value.name not in unread
    )
    ops = tuple(
        (
            op.target,
            tuple(at[n] for n in op.inputs),
            tuple((v.dtype, size(v.shape)) for v in op.outputs),
            tuple((key, kind(value)) for key, value in op.attrs),
        )
        for op in graph.ops
    )
    return inputs, ops, tuple(at[n] for n in graph.outputs if n not in unread)


def _successions(traced: Traced) -> frozenset[tuple[Skeleton, Skeleton]]:
    segmented = traced.segmented
    of = {s.name: _skeleton(s.graph, _itself, _itself) for s in segmented.segments}
    return frozenset(pairwise(of[item.segment] for item in segmented.instances))


def _shared(traced: Traced) -> frozenset[str]:
    """Names of the parameters that several instances read."""
    counts = Counter(name for item in traced.segmented.instances for name in item.params)
    return frozenset(name for name, count in counts.items() if count > 1)


def _itself(value: object) -> object:
    return value


def _rank(shape: tuple) -> int:
    return len(shape)


def _kind(value: Attr) -> object:
    """Words and switches of an attribute as they are; in place of a number that it is one."""
    if isinstance(value, tuple):
        return tuple(_kind(item) for item in value)
    if isinstance(value, str | bool) or value is None:
        return value
    return "number"
