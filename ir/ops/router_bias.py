"""A choice of experts by scores and a bias, and how much more than the mean each one is chosen.

The first op stands for its first operand, and vanishes where gradients are traced: its operands
say which choices a bias made. Each element of `ids` adds to the second's sum, so that they may be
cut.
"""

from ..graph import Op, Value
from .definition import OpDef, Rule
from .factors import rule_by_names, same_dims


def _forward(op: Op, inputs: list[Value]) -> Rule:
    dims, sizes = same_dims(op.output.shape)
    whole = tuple(tuple(() for _ in value.shape) for value in inputs[1:])
    return Rule((dims, *whole), (dims,), sizes)


def _backward(op: Op, inputs: list[Value]) -> Rule:
    names = [f"n{k}" for k in range(len(inputs[0].shape))]
    summed = [dict.fromkeys(names, "sum")]
    return rule_by_names([names], [["e"]], inputs, op.outputs, summed, "e")


DEFINITIONS = (
    OpDef(
        "mw.biased_choice",
        "pointwise",
        _forward,
        vanishes="in a joint",
        call="kernels.biased_choice",
    ),
    OpDef(
        "mw.biased_choice_backward",
        "kernel",
        _backward,
        call="kernels.biased_choice_backward",
        backward=True,
        counts_choices=True,
    ),
)
