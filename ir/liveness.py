"""Liveness: where the values of a function's ops are read last."""

from collections.abc import Collection, Iterable, Sequence

from .graph import Graph, Op
from .ops.registry import definition


def storage_of(name: str, graph: Graph) -> str:
    """The value whose memory `name` is a view of, or itself."""
    while (op := graph.producer.get(name)) is not None and definition(op).free:
        name = op.inputs[0]
    return name


def last_reads(reads: Sequence[Iterable[str]], held: Iterable[str]) -> dict[str, int]:
    """The position of the step that reads each name last, of the names that each step reads.

    held: what outlives the function, at the position behind all steps.
    """
    found = {name: index for index, names in enumerate(reads) for name in names}
    return found | dict.fromkeys(held, len(reads))


def live_after(
    ops: Sequence[Op], held: Iterable[str], counted: Collection[str]
) -> list[tuple[str, ...]]:
    """Return after each op the made values of `counted` that are still to be read, as made."""
    ends = last_reads([op.inputs for op in ops], held)
    found, live = [], dict[str, None]()
    for index, op in enumerate(ops):
        live.update((v.name, None) for v in op.outputs if v.name in counted)
        live = {name: None for name in live if ends.get(name, -1) > index}
        found.append(tuple(live))
    return found
