"""Calls of torch's own operators, and the text of attributes."""

import math
from collections.abc import Callable

from meshwright.ir.dtypes import TORCH_NAMES
from meshwright.ir.graph import Attr, Op
from meshwright.ir.ops.call import DEVICE, Argument, arguments_of, attributes_of
from meshwright.ir.sizes import is_symbolic

from ..local import Locals, as_term

Emit = Callable[[Op, list[str], Locals], str]


def attr_text(value: Attr, local: Locals) -> str:
    """Return an attribute as an argument."""
    if isinstance(value, tuple):
        return "[" + ", ".join(attr_text(v, local) for v in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if is_symbolic(value):
        return local.number_text(value)
    return repr(value) if isinstance(value, str) else str(value)


def term_text(value: Attr, local: Locals) -> str:
    """Return an attribute beside an operator."""
    return as_term(attr_text(value, local)) if is_symbolic(value) else attr_text(value, local)


def dtype_text(name: Attr) -> str:
    return f"torch.{TORCH_NAMES[str(name)]}"


def torch_call(op: Op, names: list[str], local: Locals) -> str:
    """`torch.ops.<namespace>.<op>.<overload>` on the op's operands and attributes."""
    namespace, _, base = op.target.rpartition("::")
    base = base if "." in base else f"{base}.default"
    arguments = [_operand_text(argument) for argument in arguments_of(op, names)]
    for name, value, is_dtype in attributes_of(op):
        text = dtype_text(value) if is_dtype else attr_text(value, local)
        arguments.append(f"{name}={text}")
    if op.attr(DEVICE):
        arguments.append("device=DEVICE")
    return f"torch.ops.{namespace or 'aten'}.{base}({', '.join(arguments)})"


def _operand_text(argument: Argument[str]) -> str:
    given = argument.given
    text = given if isinstance(given, str) else f"[{', '.join(given)}]"
    return f"{argument.name}={text}" if argument.keyword else text
