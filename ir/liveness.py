"""Liveness: where the values of a function's ops are read last."""

from collections.abc import Callable, Collection, Iterable, Sequence

from .graph import Graph, Op
from .ops.registry import definition


def storage_of(name: str, graph: Graph) -> str:
    """The value whose memory `name` is a view of, or itself."""
    while (op := graph.producer.get(name)) is not None and definition(op).free:
        name = op.inputs[0]
    return name


def last_reads(
    ops: Sequence[Op], held: Iterable[str], storage: Callable[[str], str] = str
) -> dict[str, int]:
    """The position of the op that reads each storage last, by its name.

    held: values that outlive the function, at the position behind all ops. storage: of a value,
    itself unless given.
    """
    found = {storage(name): index for index, op in enumerate(ops) for name in op.inputs}
    return found | {storage(name): len(ops) for name in held}


def live_after(
    ops: Sequence[Op], held: Iterable[str], counted: Collection[str]
) -> list[tuple[str, ...]]:
    """Return after each op the made values of `counted` that are still to be read, as made."""
    ends = last_reads(ops, held)
    found, live = [], dict[str, None]()
    for index, op in enumerate(ops):
        live.update((v.name, None) for v in op.outputs if v.name in counted)
        live = {name: None for name in live if ends.get(name, -1) > index}
        found.append(tuple(live))
    return found
