"""Assertions on sizes that an export leaves in its graph: true for every size, or a refusal."""

from itertools import product

import sympy
import torch
from torch.fx import Graph, Node

from ..errors import CaptureError
from .fx import source_of

_ASSERT = torch.ops.aten._assert_scalar.default
# Sizes at which an assertion is tried; lengths also from the least one on, each.
_ROWS = (1, 2, 3, 5, 8, 64)
_LENGTHS = (127, 128, 1000, 4096, 65537)
_EACH = 70


def drop_true_asserts(graph: Graph, lengths: tuple[int, int | None], name: str) -> None:
    """Take out what asserts something of B and S that holds for all of them.

    lengths: the least and most tokens of a row. Raises CaptureError, with sizes that break it, for
    one that does not hold.
    """
    tokens = next(n for n in graph.nodes if n.op == "placeholder" and _is_tokens(n))
    rows, length = (_symbol(size) for size in tokens.meta["val"].shape)
    least, most = lengths
    tried = [n for n in (*range(least, least + _EACH), *_LENGTHS) if n <= (most or n)]
    asserts = [node for node in graph.nodes if node.target is _ASSERT]
    for node in asserts:
        asserted = _symbol(_value(node.args[0]))
        if not asserted.free_symbols <= {rows, length}:
            return  # sizes that values decide: refused where they are read
        for b, s in product(_ROWS, tried):
            if not asserted.subs({rows: b, length: s}):
                raise CaptureError(
                    f"model {name}: {source_of(node) or 'its forward'} needs "
                    f"{asserted.subs({rows: sympy.Symbol('B'), length: sympy.Symbol('S')})}, which "
                    f"B={b}, S={s} breaks; its forward must do for every batch and sequence size"
                )
    _erase(graph, asserts)


def _is_tokens(node: Node) -> bool:
    shape = getattr(node.meta.get("val"), "shape", ())
    return len(shape) == 2 and all(isinstance(size, torch.SymInt) for size in shape)


def _value(argument: object) -> object:
    return argument.meta["val"] if isinstance(argument, Node) else argument


def _symbol(value: object) -> sympy.Basic:
    """The expression of a size or of a condition on sizes."""
    return value.node.expr if hasattr(value, "node") else sympy.sympify(value)


def _erase(graph: Graph, nodes: list[Node]) -> None:
    """Take out nodes, and what was calculated for them alone."""
    doomed = set(nodes)
    for node in reversed(graph.nodes):
        if node in doomed and not node.users and node.op != "placeholder":
            doomed.update(node.all_input_nodes)
            graph.erase_node(node)
