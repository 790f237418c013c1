"""Matrix products. A matmul counts 2 m n k flops."""

from ..graph import Op, Value
from ..sizes import Shape, Size, num_elements
from .definition import OpDef, Rule
from .factors import leading, rule_by_names


def _linear(op: Op, inputs: list[Value]) -> Rule:
    lead = leading(inputs[0].shape)
    dims = [[*lead, "i"], ["o", "i"]]
    return rule_by_names(dims, [[*lead, "o"]], inputs, op.outputs, [{"i": "sum"}])


def _linear_input_grad(op: Op, inputs: list[Value]) -> Rule:
    lead = leading(inputs[0].shape)
    dims = [[*lead, "o"], ["o", "i"]]
    return rule_by_names(dims, [[*lead, "i"]], inputs, op.outputs, [{"o": "sum"}])


def _linear_weight_grad(op: Op, inputs: list[Value]) -> Rule:
    lead = leading(inputs[0].shape)
    reduce = [{n: "sum" for n in lead}]
    dims = [[*lead, "o"], [*lead, "i"]]
    return rule_by_names(dims, [["o", "i"]], inputs, op.outputs, reduce)


def _matmul(op: Op, inputs: list[Value]) -> Rule:
    a, b = inputs
    lead = [f"b{k}" for k in range(len(a.shape) - 2)]
    other = lead if len(b.shape) == len(a.shape) else []
    dims = [[*lead, "m", "k"], [*other, "k", "n"]]
    return rule_by_names(dims, [[*lead, "m", "n"]], inputs, op.outputs, [{"k": "sum"}])


def _by_rows(op: Op, shapes: list[Shape]) -> Size:
    return 2 * num_elements(shapes[0]) * shapes[1][0]


def _by_columns(op: Op, shapes: list[Shape]) -> Size:
    return 2 * num_elements(shapes[0]) * shapes[1][-1]


DEFINITIONS = (
    OpDef(
        "mw.linear",
        "matmul",
        _linear,
        _by_rows,
        call="kernels.linear",
        deferred=True,
        dear=True,
        matmul_weight=True,
    ),
    OpDef(
        "mw.linear_input_grad",
        "matmul",
        _linear_input_grad,
        _by_columns,
        call="kernels.linear_input_grad",
        backward=True,
        deferred=True,
    ),
    OpDef(
        "mw.linear_weight_grad",
        "matmul",
        _linear_weight_grad,
        _by_columns,
        call="kernels.linear_weight_grad",
        backward=True,
        deferred=True,
        adds=0,
    ),
    *(
        OpDef(name, "matmul", _matmul, _by_columns, deferred=True, dear=True, matmul_weight=True)
        for name in ("mm", "bmm")
    ),
)
