"""Ops of integers that give floats, such as `torch.arange(n) / n`.

Their dtype is torch's default where they run. A program computes in the dtypes of its graph, so
their integers become that float first, as torch itself makes them before it computes.
"""

import torch
from torch import Tensor
from torch.fx import Graph, Node

_aten = torch.ops.aten
# Their first operand chooses.
_CHOICES = (_aten.where.ScalarSelf, _aten.where.ScalarOther, _aten.where.Scalar, _aten.where.self)


def cast_integers(graph: Graph) -> None:
    """Give each pointwise op without a float tensor, whose result is one, casts of its operands."""
    for node in list(graph.nodes):
        if _promotes(node):
            for operand in filter(_dtype, node.all_input_nodes):
                node.replace_input_with(operand, _cast(graph, operand, node))


def _promotes(node: Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.pointwise not in target.tags:
        return False
    made = _dtype(node)
    operands = [d for d in map(_dtype, node.all_input_nodes) if d is not None]
    integers = bool(operands) and not any(d.is_floating_point for d in operands)
    free = "dtype" not in (a.name for a in target._schema.arguments) and target not in _CHOICES
    return made is not None and made.is_floating_point and integers and free


def _dtype(node: Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, Tensor) else None


def _cast(graph: Graph, operand: Node, node: Node) -> Node:
    made = _dtype(node)
    with graph.inserting_before(node):
        cast = graph.call_function(_aten.to.dtype, (operand, made))
    cast.meta = {**node.meta, "val": operand.meta["val"].to(made)}
    return cast
