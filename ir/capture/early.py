"""Ops for what a graph returns behind its loss, moved to right behind what they read.

A class makes the loss of its routers after its last layer, of the logits of all its routers. There
every layer's logits would be alive at each cut between layers; their sum so far is one value.
"""

from ..graph import Graph, Op


def early(graph: Graph) -> Graph:
    """Return the graph with the ops that only later outputs need as early as they can be."""
    loss, *others = graph.outputs
    if not others:
        return graph
    needed = {id(op) for op in _behind(graph, {loss})}
    waiting = [op for op in graph.ops if id(op) not in needed]
    known = {item.value.name for item in graph.inputs}
    ordered: list[Op] = []
    for op in graph.ops:
        if id(op) in needed:
            _take(op, ordered, known)
            waiting = _ready(waiting, ordered, known)
    return Graph(graph.name, graph.inputs, (*ordered, *waiting), graph.outputs)


def _behind(graph: Graph, wanted: set[str]) -> list[Op]:
    """The ops that values need."""
    found = []
    for op in reversed(graph.ops):
        if any(v.name in wanted for v in op.outputs):
            wanted |= set(op.inputs)
            found.append(op)
    return found


def _take(op: Op, ordered: list[Op], known: set[str]) -> None:
    ordered.append(op)
    known.update(value.name for value in op.outputs)


def _ready(waiting: list[Op], ordered: list[Op], known: set[str]) -> list[Op]:
    """Take those of which all operands are known; return the others, in their order."""
    late = []
    for op in waiting:
        if known.issuperset(name for name in op.inputs if name):
            _take(op, ordered, known)
        else:
            late.append(op)
    return late
