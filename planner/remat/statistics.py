"""Row statistics, such as the reciprocal of a norm's root mean square: kept where they are asked.

A backward that computes them again makes its column sums wait for them, which are then kernels of
their own (cost/column_sums.py). Kept, they take one number a row.
"""

from meshwright.ir.graph import Graph
from meshwright.ir.sizes import num_elements

from ..cost.phase_work import PieceFunctions


def with_statistics(
    graph: Graph, saved: tuple[str, ...], functions: PieceFunctions
) -> tuple[str, ...]:
    """Return what is saved and, of what the backward computes again, the row statistics that its
    column sums wait for; names in order of definition."""
    phases, backward = functions.phases, functions.backward
    again = {op.output.name: op for op in phases.again}
    waits = frozenset[str]().union(*backward.sums.waits_for.values()) & again.keys()
    small = set(waits)
    for name, op in again.items():
        sizes = {num_elements(graph.values[n].shape) for n in op.inputs if n in small}
        if sizes == {num_elements(op.output.shape)}:
            small.add(name)
    used = {
        name
        for op in backward.graph.ops
        if op.output.name not in small
        for name in op.inputs
        if name in small
    }
    kept = used.union(saved)
    return tuple(name for name in graph.values if name in kept)
