"""Orders of the sequence over context axes: contiguous shards, or mirrored ones.

One order holds throughout a plan. Under contiguous shards the last rank of a causal attention that
keeps its queries does nearly twice the mean work; under mirrored ones all do the same, and every
gather of the sequence puts chunks in order.
"""

from collections.abc import Iterable

from meshwright.ir.errors import PlanError
from meshwright.ir.graph import Graph
from meshwright.ir.mesh import CONTEXT, Mesh
from meshwright.ir.ops.questions import favours_late_queries

CONTIGUOUS, MIRRORED = ORDERS = ("contiguous", "mirrored")


def orders_of(
    graphs: Iterable[Graph], mesh: Mesh, seq: int, pinned: str | None = None
) -> tuple[str, ...]:
    """Return the orders worth trying on a mesh, contiguous first; a pinned one alone.

    Raises PlanError where a pinned order does not divide the sequence.
    """
    chunks = 2 * mesh.count(CONTEXT)
    if chunks == 2 or pinned == CONTIGUOUS:
        return (CONTIGUOUS,)
    divides = seq % chunks == 0
    if pinned == MIRRORED and not divides:
        raise PlanError(_uneven(mesh, seq, chunks))
    if pinned == MIRRORED:
        return (MIRRORED,)
    balances = any(favours_late_queries(op) for graph in graphs for op in graph.ops)
    return ORDERS if divides and balances else (CONTIGUOUS,)


def _uneven(mesh: Mesh, seq: int, chunks: int) -> str:
    below = seq - seq % chunks
    near = f"{below} or {below + chunks}" if below else f"{chunks}"
    return (
        f"mirrored shards over {mesh.only(CONTEXT)} cut S={seq} into {chunks} chunks, which do not "
        f"divide it; take {near} tokens, or pin cp_order={CONTIGUOUS}"
    )
