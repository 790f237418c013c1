"""One line of Python per op. A table from op-table names to text over local names and shapes."""

from collections.abc import Callable

from meshwright.ir.dtypes import TORCH_NAMES
from meshwright.ir.graph import Attr, Op
from meshwright.ir.ops.table import ADDING, VIEWS

from .local import Locals, identifier

Emit = Callable[[Op, list[str], Locals], str]

_END = 2**63 - 1


def op_text(op: Op, local: Locals, grad: str = "") -> str:
    """The right-hand side for an op; unknown ops call torch.ops by their full name.

    grad: the gradient that an op of ADDING adds to.
    """
    names = [identifier(n) if n else "None" for n in op.inputs]
    if grad:
        assert op.target in ADDING, op.target
        text = _TABLE[op.target](op, [grad, *names], local)
        return text.replace("kernels.", "kernels.add_", 1)
    emit = _TABLE.get(op.target)
    return emit(op, names, local) if emit else _generic(op, names, local)


def attr_text(value: Attr, local: Locals) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(attr_text(v, local) for v in value) + "]"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    return repr(value) if isinstance(value, str) else str(value)


def _dtype(name: Attr) -> str:
    return f"torch.{TORCH_NAMES[str(name)]}"


def _generic(op: Op, names: list[str], local: Locals) -> str:
    namespace, _, base = op.target.rpartition("::")
    base = base if "." in base else f"{base}.default"
    attrs = []
    for name, value in op.attrs:
        text = _dtype(value) if name == "dtype" else attr_text(value, local)
        attrs.append(f"{name}={text}")
    return f"torch.ops.{namespace or 'aten'}.{base}({', '.join([*names, *attrs])})"


def _infix(symbol: str) -> Emit:
    def emit(op: Op, names: list[str], local: Locals) -> str:
        right = names[1] if len(names) > 1 else attr_text(op.attr("other"), local)
        alpha = op.attr("alpha", 1)
        scaled = right if alpha == 1 else f"{alpha} * {right}"
        return f"{names[0]} {symbol} {scaled}"

    return emit


def _call(function: str) -> Emit:
    return lambda op, names, local: f"{function}({', '.join(names)})"


def _aten(op: Op, names: list[str], local: Locals) -> str:
    attrs = [f"{k}={attr_text(v, local)}" for k, v in op.attrs]
    return f"torch.ops.aten.{op.target.partition('.')[0]}({', '.join([*names, *attrs])})"


def _reshape(op: Op, names: list[str], local: Locals) -> str:
    return f"{names[0]}.reshape{local.shape_text(op.output)}".replace(",)", ")")


def _expand(op: Op, names: list[str], local: Locals) -> str:
    return f"{names[0]}.expand{local.shape_text(op.output)}".replace(",)", ")")


def _to(op: Op, names: list[str], local: Locals) -> str:
    return f"{names[0]}.to({_dtype(op.attr('dtype'))})"


def _where(op: Op, names: list[str], local: Locals) -> str:
    other = names[2] if len(names) > 2 else attr_text(op.attr("other"), local)
    return f"torch.where({names[0]}, {names[1]}, {other})"


def _full(op: Op, names: list[str], local: Locals) -> str:
    value = {"zeros": 0, "ones": 1, "new_zeros": 0, "new_ones": 1}.get(op.target)
    if value is None:
        value = op.attr("fill_value", op.attr("s"))
    kind = _dtype(op.output.dtype)
    return f"torch.full({local.shape_text(op.output)}, {value}, dtype={kind}, device=DEVICE)"


def _arange(op: Op, names: list[str], local: Locals) -> str:
    given = [op.attr(k) for k in ("start", "end", "step")]
    numbers = ", ".join(local.size_text(g) for g in given if g is not None)
    return f"torch.arange({numbers}, dtype={_dtype(op.output.dtype)}, device=DEVICE)"


def _reduce(function: str) -> Emit:
    def emit(op: Op, names: list[str], local: Locals) -> str:
        if op.attr("dim") is None:
            return f"{names[0]}.{function}()"
        keep = ", keepdim=True" if op.attr("keepdim", False) else ""
        return f"{names[0]}.{function}({attr_text(op.attr('dim'), local)}{keep})"

    return emit


def _slice(op: Op, names: list[str], local: Locals) -> str:
    value = local.graph.values[op.inputs[0]]
    dim = int(op.attr("dim", 0)) % len(value.shape)
    cut = local.cut(op.output.name, dim)
    start = op.attr("start", 0) or 0
    length = local.size_text(local.shape(op.output)[dim])
    step = op.attr("step", 1)
    if step != 1:
        end = f"{start} + {length} * {step}"
        return f"{names[0]}[{':, ' * dim}{start}:{end}:{step}]"
    start = start // cut if isinstance(start, int) else local.size_text(start)
    return f"{names[0]}.narrow({dim}, {start}, {length})"


def _slice_backward(op: Op, names: list[str], local: Locals) -> str:
    rank = len(op.output.shape)
    dim = int(op.attr("dim", 0)) % rank
    cut = local.cut(op.output.name, dim)
    start, end = op.attr("start", 0) or 0, op.attr("end")
    shape = local.shape_text(op.output)
    if end is None or end == _END:
        end = op.output.shape[dim]
    bounds = [str(n // cut) if isinstance(n, int) else local.size_text(n) for n in (start, end)]
    step = op.attr("step", 1)
    span = f"{bounds[0]}, {bounds[1]}, {step}"
    return f"torch.ops.aten.slice_backward({names[0]}, {shape}, {dim}, {span})"


def _cat(op: Op, names: list[str], local: Locals) -> str:
    return f"torch.cat(({', '.join(names)}), dim={op.attr('dim', 0)})"


def _transpose(op: Op, names: list[str], local: Locals) -> str:
    if op.target == "t":
        return f"{names[0]}.t()"
    if op.target == "permute":
        return f"{names[0]}.permute({', '.join(map(str, op.attr('dims')))})"
    return f"{names[0]}.transpose({op.attr('dim0')}, {op.attr('dim1')})"


def _pow(op: Op, names: list[str], local: Locals) -> str:
    if op.target == "pow.Scalar":
        return f"torch.pow({attr_text(op.attr('self'), local)}, {names[0]})"
    exponent = op.attr("exponent")
    return names[0] if exponent == 1 else f"torch.pow({names[0]}, {exponent})"


def _kernel(op: Op, names: list[str], local: Locals) -> str:
    attrs = [f"{k}={attr_text(v, local)}" for k, v in op.attrs]
    return f"kernels.{op.target.removeprefix('mw.')}({', '.join([*names, *attrs])})"


def _start(name: str, local: Locals) -> str:
    """First row that this rank holds of a weight cut along dim 0."""
    rows = local.shape(local.graph.values[name])[0]
    return f"TP_RANK * {local.size_text(rows)}" if local.cut(name, 0) > 1 else "0"


def _embedding(op: Op, names: list[str], local: Locals) -> str:
    rows = local.graph.values[op.inputs[1]].shape[0]
    start = _start(op.inputs[1], local)
    return f"kernels.embedding({', '.join(names)}, start={start}, num_embeddings={rows})"


def _embedding_weight_grad(op: Op, names: list[str], local: Locals) -> str:
    rows = local.size_text(local.shape(op.output)[0])
    start = f"TP_RANK * {rows}" if local.cut(op.output.name, 0) > 1 else "0"
    padding = op.attr("padding_idx")
    skip = "" if padding is None else f", padding_idx={padding}"
    return f"kernels.embedding_weight_grad({', '.join(names)}, start={start}, rows={rows}{skip})"


def _cross_entropy(op: Op, names: list[str], local: Locals) -> str:
    weight = op.inputs[1] if op.target == "mw.linear_cross_entropy" else op.inputs[3]
    name = op.target.removeprefix("mw.")
    if len(op.outputs) == 3:
        name += "_keeping"
    softcap, start = op.attr("softcap"), _start(weight, local)
    return f"kernels.{name}({', '.join(names)}, softcap={softcap}, start={start})"


def _redistribute(op: Op, names: list[str], local: Locals) -> str:
    kind, dim, outer = op.attr("kind"), op.attr("dim"), op.attr("outer", 1)
    if kind == "all_reduce":
        return f'collectives.all_reduce({names[0]}, "{op.attr("op")}", TP)'
    size = local.size_text(outer)
    if kind == "slice":
        return f"collectives.shard({names[0]}, {dim}, {size}, TP_RANK, {local.mesh.size('tp')})"
    if kind == "all_to_all":
        source = f"{op.attr('src_dim')}, {local.size_text(op.attr('src_outer', 1))}"
        return f"collectives.all_to_all({names[0]}, {dim}, {size}, {source}, TP)"
    return f"collectives.{kind}({names[0]}, {dim}, {size}, TP)"


_TABLE: dict[str, Emit] = {
    **dict.fromkeys(VIEWS, _reshape),
    **dict.fromkeys(("transpose.int", "permute", "t"), _transpose),
    **dict.fromkeys(("scalar_tensor", "full", "zeros", "ones", "new_zeros", "new_ones"), _full),
    **dict.fromkeys(("arange", "arange.start", "arange.start_step"), _arange),
    **dict.fromkeys(("silu_backward", "gelu_backward", "tanh_backward", "sigmoid_backward"), _aten),
    **dict.fromkeys(("_to_copy", "to.dtype"), _to),
    **dict.fromkeys(("where.self", "where.ScalarOther"), _where),
    **dict.fromkeys(("pow.Tensor_Scalar", "pow.Scalar"), _pow),
    **dict.fromkeys(("sum", "sum.dim_IntList"), _reduce("sum")),
    **dict.fromkeys(("mean", "mean.dim"), _reduce("mean")),
    "amax": _reduce("amax"),
    "add.Tensor": _infix("+"),
    "add.Scalar": _infix("+"),
    "sub.Tensor": _infix("-"),
    "sub.Scalar": _infix("-"),
    "mul.Tensor": _infix("*"),
    "mul.Scalar": _infix("*"),
    "div.Tensor": _infix("/"),
    "div.Scalar": _infix("/"),
    "ne.Scalar": _infix("!="),
    "eq.Scalar": _infix("=="),
    "gt.Scalar": _infix(">"),
    "lt.Scalar": _infix("<"),
    "neg": lambda op, names, local: f"-{names[0]}",
    "rsqrt": _call("torch.rsqrt"),
    "tanh": _call("torch.tanh"),
    "sin": _call("torch.sin"),
    "cos": _call("torch.cos"),
    "exp": _call("torch.exp"),
    "silu": _call("F.silu"),
    "sigmoid": _call("torch.sigmoid"),
    "relu": _call("F.relu"),
    "ones_like": _call("torch.ones_like"),
    "zeros_like": _call("torch.zeros_like"),
    "gelu": lambda op, names, local: (
        f'F.gelu({names[0]}, approximate="{op.attr("approximate", "none")}")'
    ),
    "expand": _expand,
    "slice.Tensor": _slice,
    "slice_backward": _slice_backward,
    "cat": _cat,
    "redistribute": _redistribute,
    "mw.embedding": _embedding,
    "mw.embedding_weight_grad": _embedding_weight_grad,
    "mw.linear_cross_entropy": _cross_entropy,
    "mw.linear_cross_entropy_backward": _cross_entropy,
    **dict.fromkeys(
        (
            "mw.linear",
            "mw.linear_input_grad",
            "mw.linear_weight_grad",
            "mw.attention",
            "mw.attention_backward",
        ),
        _kernel,
    ),
}
