"""Text of ops whose kernels stand in runtime/kernels."""

from meshwright.ir.graph import Op
from meshwright.ir.ops.registry import DEFINITIONS, definition

from ..local import Locals
from .call import Emit, attr_text


def _kernel(op: Op, names: list[str], local: Locals) -> str:
    attrs = [f"{k}={attr_text(v, local)}" for k, v in op.attrs]
    return f"{definition(op).call}({', '.join([*names, *attrs])})"


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
    made = definition(op)
    assert made.logits is not None
    keeping = "_keeping" if made.passing_output == len(op.outputs) - 1 else ""
    softcap, start = op.attr("softcap"), _start(op.inputs[made.logits[1]], local)
    return f"{made.call}{keeping}({', '.join(names)}, softcap={softcap}, start={start})"


EMITTERS: dict[str, Emit] = {
    **{name: _kernel for name, made in DEFINITIONS.items() if made.call.startswith("kernels.")},
    "mw.embedding": _embedding,
    "mw.embedding_weight_grad": _embedding_weight_grad,
    "mw.linear_cross_entropy": _cross_entropy,
    "mw.linear_cross_entropy_backward": _cross_entropy,
}
