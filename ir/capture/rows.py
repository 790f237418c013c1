"""Refuse rows that see each other by a value made of all of them, as shapes show it.

A plan gives each call of a program some rows of the batch. A value that is made of all rows, such
as a mean or `all` over them, is another one there. Drawn tokens need not show it: `(tokens[:, 0] ==
17).all()` is false for nearly all of them.
"""

from ..errors import CaptureError
from ..graph import Graph, Op, Value
from ..ops.elements import reads_elements
from ..sizes import B, is_symbolic

# Inputs of a step that tell rows from each other.
_OF_ROWS = ("tokens", "source", "images", "places", "rows")
_WAY_OUT = (
    "rows see each other. A plan cuts a batch into micro-batches, so compute each row by itself"
)


def check_rows(graph: Graph) -> None:
    """Raise CaptureError for an op that gives rows what is made of other rows.

    That is a value without rows, made of one that has them, which an op with rows reads. What reads
    labels is the loss, which adds up over rows.
    """
    of_rows = {i.value.name for i in graph.inputs_of("data") if i.ref in _OF_ROWS}
    of_loss = {i.value.name for i in graph.inputs_of("data") if i.ref == "labels"}
    mixed: dict[str, Op] = {}  # values without rows that are made of rows, and by which op
    for op in graph.ops:
        made = [value.name for value in op.outputs]
        if of_loss.intersection(op.inputs):
            of_loss.update(made)
        elif not reads_elements(op):
            of_rows.update(value.name for value in op.outputs if _has_rows(value))
        elif of_rows.intersection(op.inputs):
            of_rows.update(made)
            first = next((mixed[name] for name in op.inputs if name in mixed), None)
            if any(map(_has_rows, op.outputs)):
                _check_reading(op, first)
            else:
                mixed.update(dict.fromkeys(made, first or op))


def _has_rows(value: Value) -> bool:
    return any(is_symbolic(size) and size.has(B) for size in value.shape)


def _check_reading(op: Op, mixes: Op | None) -> None:
    if mixes is not None:
        raise CaptureError(
            f"{mixes.target} at {mixes.source} makes one value of all rows, and {op.target} at "
            f"{op.source} gives it to each: {_WAY_OUT}"
        )
