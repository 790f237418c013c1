"""The load that a router gives its experts: logits [B, S, E] summed over S to [B, 2, E].

Tokens may be cut, whose loads are then summed over ranks; experts of a token are compared.
"""

from ..graph import Op, Value
from .definition import OpDef, Rule
from .factors import rule_by_names

_LOGITS, _LOAD, _FIXED = ["b", "s", "e"], ["b", "h", "e"], "h e"


def _forward(op: Op, inputs: list[Value]) -> Rule:
    return rule_by_names([_LOGITS], [_LOAD], inputs, op.outputs, [{"s": "sum"}], _FIXED)


def _backward(op: Op, inputs: list[Value]) -> Rule:
    return rule_by_names([_LOAD, _LOGITS], [_LOGITS], inputs, op.outputs, [{}], _FIXED)


DEFINITIONS = (
    OpDef("mw.router_load", "kernel", _forward, call="kernels.router_load"),
    OpDef(
        "mw.router_load_backward",
        "kernel",
        _backward,
        call="kernels.router_load_backward",
        backward=True,
    ),
)
