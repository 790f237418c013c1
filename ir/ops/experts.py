"""Experts: rows times the matrix of the expert that each is sent to.

Every dim is a factor. `e` lies in the weight alone: a rank that holds some of the experts gives 0
for the rows of the others, so that the output is a sum over ranks.
"""

from ..graph import Op, Value
from ..sizes import Shape, Size, num_elements
from .definition import OpDef, Rule, Workspace
from .factors import rule_by_names

_ITEM = {"f64": 8, "f32": 4}
# Of the rate of one large matmul that contracts as much, what products of 128 groups of 2,048 rows
# reach by the kernel that reads rows where they lie, and gradients of their matrices by torch's
# grouped matmul: readings of benchmarks/experts.py less their other passes, an H200, 2026-11-25.
_PRODUCTS_RATE, _MATRICES_RATE = 0.87, 0.675
_SORTED_BYTES = 2048.0  # a row, of sorting by expert: 0.12 ms for 262,144 rows


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


def _sorted_rows(wide: int, other: int, *, in_place: bool = False) -> Workspace:
    """Bytes of the rows of two operands of a width, in the order of experts, from the position of
    the one with a row a choice and of the one whose last dim the others have. in_place: on CUDA in
    half precision they stay where they lie."""

    def taken(op: Op, inputs: list[Value], elements: list[float], device: str) -> float:
        ids = elements[-1]
        if in_place and device == "cuda" and inputs[wide].dtype in ("bf16", "f16"):
            return 0.0
        widths = [inputs[wide].shape[-1], inputs[other].shape[-1]]
        return ids * sum(map(float, widths)) * _ITEM.get(inputs[wide].dtype, 2)

    return taken


def _sorting(op: Op, inputs: list[Value], elements: list[float]) -> float:
    return elements[-1] * _SORTED_BYTES


def _summing(op: Op, inputs: list[Value], elements: list[float]) -> float:
    """Bytes of a gradient with a row a choice, written and read where its rows are summed."""
    dy, _, ids = inputs
    if len(op.output.shape) == len(ids.shape) + 1:
        return _sorting(op, inputs, elements)
    made = elements[-1] * float(op.output.shape[-1])  # whole rows, however the weight is cut
    return 2.0 * made * _ITEM.get(dy.dtype, 2) + _sorting(op, inputs, elements)


def _ordering(op: Op, inputs: list[Value], elements: list[float]) -> float:
    """Bytes of the rows of two operands, read and put in the order of experts."""
    dy, x, ids = inputs
    rows = elements[-1]
    wide = _width(dy, ids, elements[0], rows) + _width(x, ids, elements[1], rows)
    return 2.0 * rows * wide * _ITEM.get(dy.dtype, 2) + _sorting(op, inputs, elements)


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
        workspace=_sorted_rows(0, 1, in_place=True),
        passes=_sorting,
        rate_share=_PRODUCTS_RATE,
        contracts=0,
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
        passes=_summing,
        rate_share=_PRODUCTS_RATE,
        contracts=0,
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
        passes=_ordering,
        rate_share=_MATRICES_RATE,
    ),
)
