"""One line of Python per op: an emitter for each definition of the registry."""

from collections.abc import Callable

from meshwright.ir.graph import Op
from meshwright.ir.ops.registry import DEFINITIONS, definition

from ..local import Locals, identifier
from . import collective, kernel, pointwise, shape
from .call import Emit, torch_call

EMITTERS: dict[str, Emit] = {
    # Ops without a text of their own call torch's operator, composites of the context among them.
    **{name: torch_call for name, made in DEFINITIONS.items() if made.registered},
    **pointwise.EMITTERS,
    **shape.EMITTERS,
    **kernel.EMITTERS,
    **collective.EMITTERS,
}


def op_text(op: Op, local: Locals, grad: str = "", name: Callable[[str], str] = identifier) -> str:
    """The right-hand side for an op; one that nobody registered calls torch.ops by its full name.

    grad: the gradient that an op adds its output to, where its definition says that it can. name:
    what stands for a value.
    """
    names = [name(n) if n else "None" for n in op.inputs]
    emit = EMITTERS.get(op.target, torch_call)
    if not grad:
        return emit(op, names, local)
    assert definition(op).adds is not None, op.target
    return emit(op, [grad, *names], local).replace("kernels.", "kernels.add_", 1)
