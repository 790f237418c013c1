"""Which parameters are tables: embeddings and heads, which optimizers of matrices leave alone."""

from collections.abc import Iterable, Iterator, Sequence

from .graph import Graph, Op
from .ops.registry import definition
from .phases import Joint

# What passes the elements of one value on: the product that a head makes reaches the loss by them.
_PASSING = ("view", "pointwise", "reduction", "movement", "collective", "call")


def tables_among(uses: Iterable[tuple[Graph, Sequence[str]]]) -> set[str]:
    """Return the parameters whose rows are picked, and those whose product is the last one before
    the loss. uses: joint graphs, and the names of their parameters in order."""
    found = set()
    for graph, names in uses:
        heads = set(_heads(graph))
        for given, name in zip(graph.inputs_of("param"), names, strict=True):
            if given.value.name in heads or _read_by_table(graph, given.value.name):
                found.add(name)
    return found


def _read_by_table(graph: Graph, name: str) -> bool:
    users = graph.users[name]
    return any(definition(op).reads_table for op in users) or any(
        _read_by_table(graph, op.output.name) for op in users if _copies(graph, op)
    )


def _copies(graph: Graph, op: Op) -> bool:
    """Return whether an op gives the elements of its one operand: gathered, cast, or scaled."""
    asked = definition(op)
    if asked.collective:
        return True
    if asked.kind != "pointwise" or len(op.inputs) != 1:
        return False
    return op.output.shape == graph.values[op.inputs[0]].shape


def _heads(graph: Graph) -> Iterator[str]:
    """Yield the parameters of the products that reach the loss with no other product between."""
    left, seen = [Joint(graph).loss], set[str]()
    while left:
        name = left.pop()
        op = graph.producer.get(name)
        if op is None or name in seen or _is_unknown_layer(graph, op):
            continue
        seen.add(name)
        if definition(op).kind == "matmul":
            yield from filter(None, (_param_of(graph, operand) for operand in op.inputs))
        elif definition(op).kind in _PASSING:
            left += filter(None, op.inputs)


def _is_unknown_layer(graph: Graph, op: Op) -> bool:
    """Return whether an op that nobody registered reads a parameter, as a convolution does."""
    return definition(op).kind == "call" and any(_param_of(graph, x) for x in op.inputs if x)


def _param_of(graph: Graph, name: str) -> str:
    """Return the parameter that a value is a view or a copy of, "" where it is none."""
    params = {given.value.name for given in graph.inputs_of("param")}
    while name not in params:
        op = graph.producer.get(name)
        if op is None or not (definition(op).kind == "view" or _copies(graph, op)):
            return ""
        name = op.inputs[0]
    return name
