"""Ops that take rows of a table, or put parts into place."""

from ..dtypes import ITEM_BYTES
from ..graph import Op, Value
from ..sizes import Size
from .definition import OpDef, Rule
from .factors import rule_by_names
from .view import sliced

FEW_IDS = 256  # that of the kernel (runtime/engine/kernels/embedding.py)


def _slice_backward(op: Op, inputs: list[Value]) -> Rule:
    large, small, sizes, fixed = sliced(op, op.output, inputs[0])
    return Rule((small,), (large,), sizes, fixed=fixed, linear=True)


def _cat(op: Op, inputs: list[Value]) -> Rule:
    rank = len(op.output.shape)
    dim = int(op.attr("dim", 0)) % rank
    shapes = [v.shape for v in inputs if len(v.shape) == rank]  # torch passes over an empty [0]
    equal = all(shape == shapes[0] for shape in shapes) and len(shapes) == len(inputs)
    sizes: dict[str, Size] = {f"d{k}": size for k, size in enumerate(shapes[0])}
    part: list[tuple[str, ...]] = [(f"d{k}",) for k in range(rank)]
    whole = list(part)
    fixed = set()
    if equal:
        sizes["blocks"] = len(inputs)
        whole[dim] = ("blocks", f"d{dim}")
        fixed.add("blocks")
    else:
        part[dim] = whole[dim] = ()
        sizes.pop(f"d{dim}")
    parts = tuple(tuple(part) if len(v.shape) == rank else ((),) for v in inputs)
    return Rule(parts, (tuple(whole),), sizes, fixed=frozenset(fixed))


def _embedding(op: Op, inputs: list[Value]) -> Rule:
    lead = [f"b{k}" for k in range(len(inputs[0].shape))]
    return rule_by_names([lead, ["v", "d"]], [[*lead, "d"]], inputs, op.outputs, [{"v": "sum"}])


def _embedding_weight_grad(op: Op, inputs: list[Value]) -> Rule:
    lead = [f"b{k}" for k in range(len(inputs[1].shape))]
    reduce = [{n: "sum" for n in lead}]
    return rule_by_names([[*lead, "d"], lead], [["v", "d"]], inputs, op.outputs, reduce)


def _summed_bytes(op: Op, inputs: list[Value], elements: list[float], device: str) -> float:
    """The rows in at least float32; in half precision their sums as well, which are rounded once.
    Beside a gradient in float32 no sums are made. Of few ids their columns."""
    item = ITEM_BYTES[inputs[0].dtype]
    if device == "cuda" and _in_columns(op, inputs):
        return _column_bytes(op, elements)
    return elements[0] * (item if item > 2 else 2 * 4 + item)


def _scattered_bytes(op: Op, inputs: list[Value], elements: list[float]) -> float:
    """The bytes that take as long as adding rows to others, each element by itself: 0.64 ms for
    16,384 of 4,096 in bfloat16 on an H200 (2026-11-28). Of few ids the columns, written and read.
    """
    if _in_columns(op, inputs):
        return 2 * _column_bytes(op, elements)
    return elements[0] * 20 * ITEM_BYTES[inputs[0].dtype]


def _in_columns(op: Op, inputs: list[Value]) -> bool:
    """Return whether a matmul on a GPU sums the rows of each id."""
    return int(op.attr("num_embeddings")) <= FEW_IDS and ITEM_BYTES[inputs[0].dtype] == 2


def _column_bytes(op: Op, elements: list[float]) -> float:
    """The bytes of a column for each id, of ones where a row is of that id."""
    return elements[1] * int(op.attr("num_embeddings")) * 2


DEFINITIONS = (
    OpDef("cat", "movement", _cat, call="torch.cat"),
    OpDef("slice_backward", "movement", _slice_backward, backward=True),
    OpDef(
        "mw.embedding",
        "lookup",
        _embedding,
        call="kernels.embedding",
        dear=True,
        reads_table=True,
        gathers=1,
    ),
    OpDef(
        "mw.embedding_weight_grad",
        "lookup",
        _embedding_weight_grad,
        call="kernels.embedding_weight_grad",
        backward=True,
        deferred=True,
        adds=0,
        scatters=True,
        workspace=_summed_bytes,
        passes=_scattered_bytes,
    ),
)
