"""What ops make of elements: whether they read any, and along which dims they mix or move them.

Most of these ops nobody registered, so they are known by torch's names alone.
"""

from ..graph import Op
from ..sizes import Shape
from .registry import definition

# Results hold nothing of the elements of the operands, only shapes.
_OF_SHAPES = ("empty_like", "full_like", "ones_like", "zeros_like", "new_empty", "new_full")
# An element of the result is made of others along `dim`, or of one in another place along it.
_ALONG = """
    argsort cummax cummin cumprod cumsum flip gather index_add index_copy index_fill index_select
    log_softmax logcumsumexp roll rot90 scatter scatter_add scatter_reduce softmax sort
""".split()


def reads_elements(op: Op) -> bool:
    """Return whether any element of a result depends on the elements of an operand."""
    empty = all(0 in value.shape for value in op.outputs)
    return not (empty or definition(op).source or _name(op) in _OF_SHAPES)


def dims_mixed(op: Op, shape: Shape) -> tuple[int, ...]:
    """Return the dims, of the first operand's shape, along which elements are mixed or moved.

    Reductions are left out: their results lack the dim.
    """
    if _name(op).removeprefix("_") not in _ALONG:
        return ()
    given = op.attr("dim", op.attr("dims", -1))
    dims = given if isinstance(given, tuple) else (given,)
    return tuple(d % len(shape) for d in dims if isinstance(d, int) and shape)


def _name(op: Op) -> str:
    """The name without its overload."""
    return op.target.partition(".")[0]
