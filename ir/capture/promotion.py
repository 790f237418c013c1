"""Ops of integers or numbers that give floats, such as `torch.arange(n) / n`.

Their dtype is torch's default where they run. A program computes in the dtypes of its graph, so
their integers become that float first, as torch itself makes them before it computes, and the two
numbers that `torch.where` chooses from become tensors of that float. `type_as` names its dtype.
"""

from typing import Any

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


def state_numbers(graph: Graph) -> None:
    """Give each `torch.where` of two numbers a tensor of its result's dtype for each."""
    for node in list(graph.nodes):
        if node.target is _aten.where.Scalar:
            condition, *numbers = node.args
            node.args = (condition, *(_tensor(graph, number, node) for number in numbers))
            node.target = _aten.where.self


def name_dtypes(graph: Graph) -> None:
    """Give each `type_as` the dtype in place of the tensor that has it, whose elements it does not
    read."""
    for node in graph.nodes:
        if node.target is _aten.type_as.default:
            node.args = (node.args[0], _dtype(node))
            node.target = _aten.to.dtype


def _tensor(graph: Graph, number: Any, node: Node) -> Node:
    made = _dtype(node)
    with graph.inserting_before(node):
        tensor = graph.call_function(_aten.scalar_tensor.default, (number,), {"dtype": made})
    tensor.meta = {**node.meta, "val": node.meta["val"].new_empty((), dtype=made)}
    return tensor


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
