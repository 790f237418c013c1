"""Lengths of sequence that the tables of a module are for: positions that it looks up in them.

A slice of a table bounds the length in the export itself; a look-up by numbers, such as
`nn.Embedding(1024, d)(torch.arange(S))`, does not, as an export has no values.
"""

import operator
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.node import map_arg

from ..errors import CaptureError
from .lines import line_of

aten = torch.ops.aten
_NO_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled
_OF_A_SHAPE = (
    aten.sym_size.int,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
)
_ON_SIZES = operator.add.__module__  # of what Python calculates with sizes
_MOST_ELEMENTS = 2**26  # of an index that is calculated to be looked at


def longest(
    program: ExportedProgram, positions: tuple[str, ...], name: str, step: int = 1
) -> int | None:
    """Return the most tokens of a row of which all positions are in the tables that they are looked
    up in; None for any number. positions: inputs [B, S] that hold 0 to S - 1. step: of how many
    tokens a row has a multiple.

    Of the indices that the length alone decides: those made of values are not looked at. Raises
    CaptureError where even a row of one step is past a table.
    """
    decided = _of_the_length(program, positions)
    bounds = [
        _longest_of(program, node, index, entries, name, step)
        for node, index, entries in _looked_up(program)
        if index in decided
    ]
    return min((n for n in bounds if n is not None), default=None)


def _looked_up(program: ExportedProgram) -> Iterator[tuple[Node, Node, range]]:
    """Each look-up: its node, the index, and what the index may be."""
    for node in program.graph.nodes:
        if node.target is aten.embedding.default:
            found = [(node.args[1], 0)]
        elif node.target is aten.index.Tensor:
            found = [(index, dim) for dim, index in enumerate(node.args[1])]
        elif node.target is aten.index_select.default:
            found = [(node.args[2], node.args[1])]
        else:
            continue
        sizes = node.args[0].meta["val"].shape
        for index, dim in found:
            if isinstance(index, Node) and isinstance(size := sizes[dim], int):
                from_end = size if node.target is aten.index.Tensor else 0
                yield node, index, range(-from_end, size)


def _longest_of(
    program: ExportedProgram, node: Node, index: Node, entries: range, name: str, step: int
) -> int | None:
    length = 2 * entries.stop // step + 1  # in steps
    if not _small(index, length * step):
        return None
    fits = partial(_fits, program, index, entries, step)
    if fits(length):
        return None
    if not fits(1):
        raise CaptureError(
            f"model {name}: {line_of(node) or 'its forward'} looks up entries past the "
            f"{entries.stop} of a table, for a row of one token already; give it more"
        )
    short = 1
    while length - short > 1:
        middle = (short + length) // 2
        short, length = (middle, length) if fits(middle) else (short, middle)
    return short * step


def _of_the_length(program: ExportedProgram, positions: tuple[str, ...]) -> frozenset[Node]:
    """Return the nodes that sizes and positions alone decide, and that nothing writes into."""
    found: set[Node] = set()
    for node in program.graph.nodes:
        if _is_of_the_length(node, positions, found) and not any(map(_writes, node.users)):
            found.add(node)
    return frozenset(found)


def _is_of_the_length(node: Node, positions: tuple[str, ...], found: set[Node]) -> bool:
    if node.target in _OF_A_SHAPE:
        return node.all_input_nodes[0].op == "placeholder"
    if node.op in ("placeholder", "get_attr"):
        return node.op == "get_attr" or node.name in positions
    known = node.target is _NO_GRAD or getattr(node.target, "__module__", "") == _ON_SIZES
    known = known or isinstance(node.target, torch._ops.OpOverload)
    return known and found.issuperset(node.all_input_nodes)


def _writes(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _small(index: Node, length: int) -> bool:
    """Tell whether an index of a row of `length` tokens is soon calculated."""
    value = index.meta.get("val")
    dims = value.ndim if isinstance(value, Tensor) else 0
    return length ** min(dims, 2) <= _MOST_ELEMENTS


def _fits(program: ExportedProgram, index: Node, entries: range, step: int, count: int) -> bool:
    """Tell whether all of an index are entries of its dim, for a row of `count` steps."""
    found = _value(program, index, count * step, {})
    if found.dtype is torch.bool:
        return True
    return bool(((entries.start <= found) & (found < entries.stop)).all())


def _value(program: ExportedProgram, node: Node, length: int, known: dict[Node, Any]) -> Any:
    """The value of a node for one row of `length` tokens."""
    if node not in known:
        known[node] = _calculated(program, node, length, known)
    return known[node]


def _calculated(program: ExportedProgram, node: Node, length: int, known: dict[Node, Any]) -> Any:
    if node.op == "placeholder":
        return torch.arange(length)[None]
    target: Any = node.target
    if node.op == "get_attr":
        return operator.attrgetter(target)(program.graph_module)
    inner = partial(_value, program, length=length, known=known)
    return target(*map_arg(node.args, inner), **map_arg(node.kwargs, inner))
