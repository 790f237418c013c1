"""The head's linear with the cross-entropy; its backward makes logits that are not given again."""

from ..graph import Op, Value
from ..sizes import Shape, Size, num_elements
from .definition import OpDef, Rule
from .factors import leading, rule_by_names


def _forward(op: Op, inputs: list[Value]) -> Rule:
    lead = leading(inputs[0].shape)
    reduce = [{"v": "lse"}, {"v": "sum"}, {}]
    dims_in = [[*lead, "i"], ["v", "i"], lead]
    made = [lead, lead, [*lead, "v"]][: len(op.outputs)]
    return rule_by_names(dims_in, made, inputs, op.outputs, reduce[: len(made)], "i")


def _backward(op: Op, inputs: list[Value]) -> Rule:
    lead = leading(inputs[2].shape)
    dims_in = [lead, lead, [*lead, "i"], ["v", "i"], lead, lead, [*lead, "v"]][: len(inputs)]
    reduce = [{"v": "sum"}, {n: "sum" for n in lead}]
    return rule_by_names(dims_in, [[*lead, "i"], ["v", "i"]], inputs, op.outputs, reduce, "i")


def _forward_flops(op: Op, shapes: list[Shape]) -> Size:
    return 2 * num_elements(shapes[0]) * shapes[1][0]


def _backward_flops(op: Op, shapes: list[Shape]) -> Size:
    return (4 if len(shapes) == 7 else 6) * num_elements(shapes[2]) * shapes[3][0]


DEFINITIONS = (
    OpDef(
        "mw.linear_cross_entropy",
        "loss",
        _forward,
        _forward_flops,
        call="kernels.linear_cross_entropy",
        output_names=("lse", "picked", "logits"),
        dear=True,
        passing_output=2,
        matmul_weight=True,
        reads_table=True,
        logits=(0, 1),
    ),
    OpDef(
        "mw.linear_cross_entropy_backward",
        "loss",
        _backward,
        _backward_flops,
        call="kernels.linear_cross_entropy_backward",
        output_names=("dx", "dw"),
        backward=True,
        adds=1,
        recomputed_operand=6,
        logits=(2, 3),
    ),
)
