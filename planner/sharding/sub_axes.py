"""Sub-axes: a tensor axis with more ranks than there are KV heads splits in two.

Its outer part has one rank a KV head; the inner part shares the queries of each head, and sums the
gradients of the keys and values that its ranks hold alike (Ainslie et al. 2023, section 2: groups
of queries over one KV head).
"""

from collections.abc import Iterable

from meshwright.ir.graph import Graph, Op
from meshwright.ir.mesh import TENSOR, Mesh
from meshwright.ir.ops.questions import rule_of
from meshwright.ir.ops.registry import definition

from .strategies import Strategy


def inner_ranks(graphs: Iterable[Graph], tensor: int) -> int:
    """Ranks of the inner part of a tensor axis of `tensor` ranks; 1 where it stays one axis.

    The axis splits where its ranks are a multiple of the KV heads and what is left divides the
    queries of a head, in every attention of the graphs that it does not divide by KV heads.
    """
    found = {part for kv, group in _heads(graphs) if (part := _part(kv, group, tensor)) > 1}
    return found.pop() if len(found) == 1 else 1


def _part(kv: int, group: int, tensor: int) -> int:
    splits = 1 < kv < tensor and tensor % kv == 0 and group % (tensor // kv) == 0
    return tensor // kv if splits else 1


def whole_attention_note(op: Op, graph: Graph, offered: Iterable[Strategy], mesh: Mesh) -> str:
    """Return the coverage line of an attention that no tensor axis can cut, or ""."""
    asked, tensor = definition(op), mesh.names(TENSOR)
    if asked.queries is None or asked.backward or not tensor:
        return ""
    if any(p.shard(axis) for way in offered for p in way.inputs for axis in tensor):
        return ""
    rule = rule_of(op, graph)
    assert rule is not None
    kv, group = (rule.sizes[factor] for factor in rule.inputs[asked.queries][1])
    return (
        f"{op.target} stays whole on each of {mesh.count(TENSOR)} tensor ranks, which divide "
        f"neither its {kv} KV heads nor the {group} queries of each ({op.source}); "
        f"pin tp to a divisor of {kv}, or to a multiple whose rest divides {group}"
    )


def _heads(graphs: Iterable[Graph]) -> set[tuple[int, int]]:
    """(KV heads, queries of each) of every attention."""
    found = set()
    for graph in graphs:
        for op in graph.ops:
            queries = definition(op).queries
            rule = rule_of(op, graph) if queries is not None else None
            if rule is not None and queries is not None:
                kv, group = (rule.sizes[factor] for factor in rule.inputs[queries][1])
                if isinstance(kv, int) and isinstance(group, int):
                    found.add((kv, group))
    return found
