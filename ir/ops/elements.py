"""Whether an op reads the elements of its operands, or their shapes alone."""

from ..graph import Op
from .registry import definition

# Results hold nothing of the elements of the operands. Nobody registered them: torch's names.
_OF_SHAPES = ("empty_like", "full_like", "ones_like", "zeros_like", "new_empty", "new_full")


def reads_elements(op: Op) -> bool:
    """Return whether any element of a result depends on the elements of an operand."""
    empty = all(0 in value.shape for value in op.outputs)
    name = op.target.partition(".")[0]
    return not (empty or definition(op).source or name in _OF_SHAPES)
