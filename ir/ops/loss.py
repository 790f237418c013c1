"""The head's linear with the cross-entropy; its backward makes logits that are not given again."""

from ..dtypes import ITEM_BYTES
from ..graph import Op, Value
from ..sizes import Shape, Size, num_elements
from .definition import OpDef, Passes, Rule, Workspace
from .factors import leading, rule_by_names

# Logits of one chunk, and its tokens at least on CUDA in half precision; a test holds them equal to
# those of runtime/engine/kernels/cross_entropy.py.
LOGITS_ELEMENTS = 2048 * 131072
LEAST_TOKENS = 4096


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


def _chunk_bytes(features: int, weight: int, operands: int = 0) -> Workspace:
    """The bytes of one chunk of logits, from the positions of the operands that make them.

    On CUDA, kernels read logits in half precision: there is the matmul's output, and of a backward
    of `operands` its gradient, alone where the last operand is the logits. Elsewhere each logit
    lives as the matmul's output and once in at least float32.
    """

    def taken(op: Op, inputs: list[Value], elements: list[float], device: str) -> float:
        x = inputs[features]
        width, item = x.shape[-1], ITEM_BYTES[x.dtype]
        assert isinstance(width, int)
        tokens, rows = elements[features] / width, elements[weight] / width
        bytes_each, most = item + max(item, 4), float(LOGITS_ELEMENTS)
        if device == "cuda" and item == 2:
            bytes_each = 2 * item if len(inputs) < operands else item
            most = max(most, LEAST_TOKENS * rows)
        return min(tokens * rows, most) * bytes_each

    return taken


def _logits_bytes(times: int, features: int, weight: int) -> Passes:
    """The bytes of reading or writing all logits so many times: their statistics read them once,
    their gradient reads them and is written."""

    def moved(op: Op, inputs: list[Value], elements: list[float]) -> float:
        x = inputs[features]
        width = x.shape[-1]
        assert isinstance(width, int)
        tokens, rows = elements[features] / width, elements[weight] / width
        return times * tokens * rows * ITEM_BYTES[x.dtype]

    return moved


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
        workspace=_chunk_bytes(features=0, weight=1),
        passes=_logits_bytes(1, features=0, weight=1),
        contracts=0,
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
        workspace=_chunk_bytes(features=2, weight=3, operands=7),
        passes=_logits_bytes(2, features=2, weight=3),
    ),
)
