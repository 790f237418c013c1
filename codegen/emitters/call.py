"""Calls of torch's own operators, and the text of attributes."""

from collections.abc import Callable

from meshwright.ir.dtypes import TORCH_NAMES
from meshwright.ir.graph import Attr, Op

from ..local import Locals

Emit = Callable[[Op, list[str], Locals], str]


def attr_text(value: Attr, local: Locals) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(attr_text(v, local) for v in value) + "]"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    return repr(value) if isinstance(value, str) else str(value)


def dtype_text(name: Attr) -> str:
    return f"torch.{TORCH_NAMES[str(name)]}"


def torch_call(op: Op, names: list[str], local: Locals) -> str:
    """`torch.ops.<namespace>.<op>.<overload>` on the op's operands and attributes."""
    namespace, _, base = op.target.rpartition("::")
    base = base if "." in base else f"{base}.default"
    attrs = []
    for name, value in op.attrs:
        text = dtype_text(value) if name == "dtype" else attr_text(value, local)
        attrs.append(f"{name}={text}")
    return f"torch.ops.{namespace or 'aten'}.{base}({', '.join([*names, *attrs])})"
