"""Text of pointwise ops, and of others that Python writes with an operator."""

from meshwright.ir.graph import Op
from meshwright.ir.ops.registry import definition

from ..local import Locals
from .call import Emit, attr_text, dtype_text, term_text


def _infix(symbol: str) -> Emit:
    def emit(op: Op, names: list[str], local: Locals) -> str:
        right = names[1] if len(names) > 1 else term_text(op.attr("other"), local)
        alpha = op.attr("alpha", 1)
        scaled = right if alpha == 1 else f"{term_text(alpha, local)} * {right}"
        return f"{names[0]} {symbol} {scaled}"

    return emit


def _plain(op: Op, names: list[str], local: Locals) -> str:
    return f"{definition(op).call}({', '.join(names)})"


def _like(op: Op, names: list[str], local: Locals) -> str:
    """A tensor like another, in a dtype of its own."""
    same = local.graph.values[op.inputs[0]].dtype == op.output.dtype
    kind = "" if same else f", dtype={dtype_text(op.output.dtype)}"
    return f"{definition(op).call}({names[0]}{kind})"


def _negative(op: Op, names: list[str], local: Locals) -> str:
    return f"-{names[0]}"


def _gelu(op: Op, names: list[str], local: Locals) -> str:
    return f'F.gelu({names[0]}, approximate="{op.attr("approximate", "none")}")'


def _packet(op: Op, names: list[str], local: Locals) -> str:
    """The operator without its overload."""
    attrs = [f"{k}={attr_text(v, local)}" for k, v in op.attrs]
    return f"torch.ops.aten.{op.target.partition('.')[0]}({', '.join([*names, *attrs])})"


def _to(op: Op, names: list[str], local: Locals) -> str:
    return f"{names[0]}.to({dtype_text(op.output.dtype)})"


def _where(op: Op, names: list[str], local: Locals) -> str:
    other = names[2] if len(names) > 2 else attr_text(op.attr("other"), local)
    return f"torch.where({names[0]}, {names[1]}, {other})"


def _pow(op: Op, names: list[str], local: Locals) -> str:
    if op.target == "pow.Scalar":
        return f"torch.pow({attr_text(op.attr('self'), local)}, {names[0]})"
    exponent = op.attr("exponent")
    if exponent == 1 and local.graph.values[op.inputs[0]].dtype == op.output.dtype:
        return names[0]
    return f"torch.pow({names[0]}, {attr_text(exponent, local)})"


_SYMBOLS = {
    "+": ("add.Tensor", "add.Scalar"),
    "-": ("sub.Tensor", "sub.Scalar"),
    "*": ("mul.Tensor", "mul.Scalar"),
    "/": ("div.Tensor", "div.Scalar"),
    "!=": ("ne.Scalar",),
    "==": ("eq.Scalar",),
    ">": ("gt.Scalar",),
    "<": ("lt.Scalar",),
    "@": ("mm", "bmm", "matmul"),
}
_PLAIN = "rsqrt tanh sin cos exp silu sigmoid relu".split()
_BACKWARD = "silu_backward gelu_backward tanh_backward sigmoid_backward".split()

EMITTERS: dict[str, Emit] = {
    **{name: _infix(symbol) for symbol, names in _SYMBOLS.items() for name in names},
    **dict.fromkeys(_PLAIN, _plain),
    **dict.fromkeys(("ones_like", "zeros_like"), _like),
    **dict.fromkeys(_BACKWARD, _packet),
    **dict.fromkeys(("_to_copy", "to.dtype"), _to),
    **dict.fromkeys(("where.self", "where.ScalarOther"), _where),
    **dict.fromkeys(("pow.Tensor_Scalar", "pow.Scalar"), _pow),
    "neg": _negative,
    "gelu": _gelu,
}
