"""Ops that make a tensor from nothing, whole on every rank."""

from ..graph import Op, Value
from .definition import OpDef, Rule


def _whole(op: Op, inputs: list[Value]) -> Rule:
    dims = tuple(() for _ in op.output.shape)
    return Rule(tuple(tuple(() for _ in v.shape) for v in inputs), (dims,), {})


_FILLED = "scalar_tensor full zeros ones new_zeros new_ones".split()
_COUNTED = "arange arange.start arange.start_step".split()

DEFINITIONS = (
    *(OpDef(name, "source", _whole, call="torch.full") for name in _FILLED),
    *(OpDef(name, "source", _whole, call="torch.arange") for name in _COUNTED),
)
