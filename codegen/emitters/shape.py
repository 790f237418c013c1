"""Text of what makes, views, reduces and moves: sources, views, reductions, slices, cat."""

from meshwright.ir.graph import Op
from meshwright.ir.sizes import Size, evaluate

from ..local import Locals
from .call import Emit, attr_text, dtype_text

_END = 2**63 - 1


def _reshape(op: Op, names: list[str], local: Locals) -> str:
    return f"{names[0]}.reshape{_sizes_text(op, local)}"


def _expand(op: Op, names: list[str], local: Locals) -> str:
    return f"{names[0]}.expand{_sizes_text(op, local)}"


def _sizes_text(op: Op, local: Locals) -> str:
    """The output's shape as arguments in brackets; no dims are an empty tuple."""
    return local.shape_text(op.output).replace(",)", ")").replace("()", "(())")


def _transpose(op: Op, names: list[str], local: Locals) -> str:
    return f"{names[0]}.transpose({op.attr('dim0')}, {op.attr('dim1')})"


def _permute(op: Op, names: list[str], local: Locals) -> str:
    return f"{names[0]}.permute({', '.join(map(str, op.attr('dims')))})"


def _t(op: Op, names: list[str], local: Locals) -> str:
    return f"{names[0]}.t()"


def _full(value: int | None = None) -> Emit:
    def emit(op: Op, names: list[str], local: Locals) -> str:
        given = op.attr("fill_value", op.attr("s")) if value is None else value
        filled = f"{local.shape_text(op.output)}, {attr_text(given, local)}"
        return f"torch.full({filled}, dtype={dtype_text(op.output.dtype)}, device=DEVICE)"

    return emit


def _arange(op: Op, names: list[str], local: Locals) -> str:
    given = [op.attr(k) for k in ("start", "end", "step")]
    numbers = ", ".join(attr_text(g, local) for g in given if g is not None)
    return f"torch.arange({numbers}, dtype={dtype_text(op.output.dtype)}, device=DEVICE)"


def _reduce(function: str) -> Emit:
    def emit(op: Op, names: list[str], local: Locals) -> str:
        given, keep = op.attr("dim"), bool(op.attr("keepdim", False))
        over = "dim=()" * keep if given is None else attr_text(given, local)
        dtype = op.attr("dtype") and f"dtype={dtype_text(op.attr('dtype'))}"
        arguments = filter(None, (over, "keepdim=True" * keep, dtype))
        return f"{names[0]}.{function}({', '.join(arguments)})"

    return emit


def _slice(op: Op, names: list[str], local: Locals) -> str:
    value = local.graph.values[op.inputs[0]]
    dim = int(op.attr("dim", 0)) % len(value.shape)
    cut = local.cut(op.output.name, dim)
    start, step = _start(op.attr("start", 0) or 0, value.shape[dim], local), op.attr("step", 1)
    length = local.shape(op.output)[dim]
    if step != 1:
        span = f"{attr_text(start, local)}:{attr_text(start + length * step, local)}:{step}"
        return f"{names[0]}[{':, ' * dim}{span}]"
    start = start // cut if isinstance(start, int) else start
    return f"{names[0]}.narrow({dim}, {attr_text(start, local)}, {attr_text(length, local)})"


def _start(start: Size, whole: Size, local: Locals) -> Size:
    """Return where a slice begins, counted from the first element and within the dim."""
    from_end = evaluate(start, local.plan.sizes) < 0
    first = whole + start if from_end else start
    size = evaluate(whole, local.plan.sizes)
    within = min(max(evaluate(first, local.plan.sizes), 0), size)
    return first if within == evaluate(first, local.plan.sizes) else within


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
    parts = f"{names[0]}," if len(names) == 1 else ", ".join(names)
    return f"torch.cat(({parts}), dim={op.attr('dim', 0)})"


_RESHAPES = """
    view _unsafe_view reshape flatten.using_ints unflatten.int squeeze squeeze.dim squeeze.dims
    unsqueeze
""".split()

EMITTERS: dict[str, Emit] = {
    **dict.fromkeys(_RESHAPES, _reshape),
    **dict.fromkeys(("scalar_tensor", "full"), _full()),
    **dict.fromkeys(("zeros", "new_zeros"), _full(0)),
    **dict.fromkeys(("ones", "new_ones"), _full(1)),
    **dict.fromkeys(("arange", "arange.start", "arange.start_step"), _arange),
    **dict.fromkeys(("sum", "sum.dim_IntList"), _reduce("sum")),
    **dict.fromkeys(("mean", "mean.dim"), _reduce("mean")),
    "amax": _reduce("amax"),
    "transpose.int": _transpose,
    "permute": _permute,
    "t": _t,
    "expand": _expand,
    "slice.Tensor": _slice,
    "slice_backward": _slice_backward,
    "cat": _cat,
}
