"""Dropout: each element falls by a draw of its own, which every plan makes again alike.

Operands: x, the keys of the segment's dropouts, and where x holds rows the keys of the rows of the
micro-batch. The keys are whole on every rank; x may be cut in any dim, for the kernel counts
elements in the logical tensor. The gradient is the same op on dy.
"""

from ..graph import Op, Value
from ..sizes import B, Shape, Size
from .definition import OpDef, Rule
from .factors import divided, same_dims


def rows_in(shape: Shape) -> tuple[int, Size] | None:
    """Return the dim that holds the rows of a batch and how many elements of it each row has, the
    row being major in it; None where no dim does."""
    for dim, size in enumerate(shape):
        if not isinstance(size, int) and B in size.free_symbols:
            return dim, divided(size, B)
    return None


def _dropout(op: Op, inputs: list[Value]) -> Rule:
    dims, sizes = same_dims(op.output.shape)
    whole = tuple(tuple(() for _ in value.shape) for value in inputs[1:])
    return Rule((dims, *whole), (dims,), sizes)


DEFINITIONS = (OpDef("mw.dropout", "pointwise", _dropout, call="kernels.dropout", numbered=True),)
