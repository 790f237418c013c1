"""Experts: rows times the matrix of the expert that each is sent to.

Every dim is a factor. `e` lies in the weight alone: a rank that holds some of the experts gives 0
for the rows of the others, so that the output is a sum over ranks.
"""

from ..graph import Op, Value
from ..sizes import Shape, Size, num_elements
from .definition import OpDef, Passes, Rule, Workspace
from .factors import rule_by_names

_ITEM = {"f64": 8, "f32": 4}
# Of the rate of one large matmul, what a matmul of many groups reaches: not read by itself, but
# what was left of one step on one H200 (qwen3-30b-a3b, 8 layers: 128 groups of 2,048 rows,
# 2026-11-24) after the passes over rows.
_GROUPED_RATE = 0.55
_SORTED_BYTES = 256.0  # a row, of sorting by expert


def _lead(ids: Value) -> list[str]:
    return [f"n{k}" for k in range(len(ids.shape))]


def _weight(op: Op) -> list[str]:
    return ["e", "i", "o"] if op.attr("transposed", False) else ["e", "o", "i"]


def _rows(x: Value, ids: Value) -> list[str]:
    """Leading dims of x, which has that of choices or not."""
    return _lead(ids)[: len(x.shape) - 1]


def _forward(op: Op, inputs: list[Value]) -> Rule:
    x, _, ids = inputs
    dims = [[*_rows(x, ids), "i"], _weight(op), _lead(ids)]
    reduce = [{"i": "sum", "e": "sum"}]
    return rule_by_names(dims, [[*_lead(ids), "o"]], inputs, op.outputs, reduce)


def _input_grad(op: Op, inputs: list[Value]) -> Rule:
    ids = inputs[2]
    kept = _rows(op.output, ids)
    dims = [[*_lead(ids), "o"], _weight(op), _lead(ids)]
    reduce = {"o": "sum", "e": "sum"} | dict.fromkeys(_lead(ids)[len(kept) :], "sum")
    return rule_by_names(dims, [[*kept, "i"]], inputs, op.outputs, [reduce])


def _weight_grad(op: Op, inputs: list[Value]) -> Rule:
    _, x, ids = inputs
    dims = [[*_lead(ids), "o"], [*_rows(x, ids), "i"], _lead(ids)]
    reduce = [dict.fromkeys(_lead(ids), "sum")]
    return rule_by_names(dims, [_weight(op)], inputs, op.outputs, reduce)


def _by_weight(op: Op, shapes: list[Shape]) -> Size:
    _, weight, ids = shapes
    return 2 * num_elements(ids) * weight[1] * weight[2]


def _by_rows(op: Op, shapes: list[Shape]) -> Size:
    dy, x, _ = shapes
    return 2 * num_elements(dy) * x[-1]


def _sorted_rows(wide: int, other: int) -> Workspace:
    """Bytes of the rows of two operands of a width, in the order of experts, from the position of
    the one with a row a choice and of the one whose last dim the others have."""

    def taken(inputs: list[Value], elements: list[float], device: str) -> float:
        ids = elements[-1]
        widths = [inputs[wide].shape[-1], inputs[other].shape[-1]]
        return ids * sum(map(float, widths)) * _ITEM.get(inputs[wide].dtype, 2)

    return taken


def _row_passes(read: tuple[int, ...], weight: int | None) -> Passes:
    """Bytes of rows put in the order of experts and back. read: operands with the rows that are
    read. weight: position of the weight, whose other features the rows of the output have; None
    where the output is a weight."""

    def moved(inputs: list[Value], elements: list[float]) -> float:
        rows, item = elements[-1], _ITEM.get(inputs[0].dtype, 2)
        total = 2.0 * sum(rows * _width(inputs[k], inputs[-1], elements[k], rows) for k in read)
        if weight is not None:
            wide = _width(inputs[read[0]], inputs[-1], elements[read[0]], rows)
            held = inputs[weight].shape[0] * wide
            total += 4.0 * rows * elements[weight] / float(held)
        return total * item + rows * _SORTED_BYTES

    return moved


def _width(x: Value, ids: Value, elements: float, rows: float) -> float:
    """Features of the rows of x that a rank holds."""
    choices = 1 if len(x.shape) > len(ids.shape) else ids.shape[-1]
    return elements / rows * float(choices)


DEFINITIONS = (
    OpDef(
        "mw.expert_linear",
        "matmul",
        _forward,
        _by_weight,
        call="kernels.expert_linear",
        deferred=True,
        dear=True,
        matmul_weight=True,
        workspace=_sorted_rows(0, 1),
        passes=_row_passes((0,), 1),
        rate_share=_GROUPED_RATE,
    ),
    OpDef(
        "mw.expert_linear_input_grad",
        "matmul",
        _input_grad,
        _by_weight,
        call="kernels.expert_linear_input_grad",
        backward=True,
        deferred=True,
        workspace=_sorted_rows(0, 1),
        passes=_row_passes((0,), 1),
        rate_share=_GROUPED_RATE,
    ),
    OpDef(
        "mw.expert_linear_weight_grad",
        "matmul",
        _weight_grad,
        _by_rows,
        call="kernels.expert_linear_weight_grad",
        backward=True,
        deferred=True,
        workspace=_sorted_rows(0, 1),
        passes=_row_passes((0, 1), None),
        rate_share=_GROUPED_RATE,
    ),
)
