"""Conditions on sizes that an export leaves: true for every size, or a refusal."""

from typing import Any

import sympy
import torch
from torch.fx import Graph, Node

from ..errors import SizeError
from ..lengths import Lengths
from ..traced import LONGEST_PROVEN
from .conditions import breaking, holds_below, holds_from
from .lines import line_of, short_line
from .steps import steps_of
from .symbolic import expression_of

_ASSERT = torch.ops.aten._assert_scalar.default


def drop_true_asserts(graph: Graph, lengths: Lengths, name: str) -> tuple[Lengths, bool]:
    """Take out what asserts something of B and S that holds for all of them.

    Returns the lengths that are left, and whether rows of the most tokens are among what was
    asserted away.

    A table that is cut to the row's length asserts that a row is shorter than the table, for torch
    views a whole table in another way: the proof runs the longest row, and where that is too long
    for it the lengths end one before. What holds of all rows below some length ends the lengths
    there, and what holds from some length on, that of the export or less, begins them there. What
    torch leaves to a check as the program is called, a guard on B and S together for one, counts as
    an assertion. Raises SizeError, with sizes that break it, for one that does not hold.
    """
    tokens = next(n for n in graph.nodes if n.op == "placeholder" and _is_tokens(n))
    sizes, step = tokens.meta["val"].shape, lengths.step
    rows, length = expression_of(sizes[0]), steps_of(sizes[1], step)
    hint = (int(sizes[1]) if isinstance(sizes[1], int) else int(sizes[1].node.hint)) // step
    least, most = lengths.least // step, lengths.most and lengths.most // step  # steps of a row
    apart = False
    asserts = [node for node in graph.nodes if node.target is _ASSERT]
    for condition, source in _conditions(asserts, sizes[0].node.shape_env).items():
        if not condition.free_symbols <= {rows, length}:
            return lengths, apart  # sizes that values decide: refused where they are read
        if most is not None and condition in _unlike(length, most, step):
            apart = most * step <= LONGEST_PROVEN
            most = most if apart else most - 1
            continue
        broken = breaking(condition, rows, length, (least, most))
        end = holds_below(condition, rows, length, (least, most)) if broken else None
        if end is not None and end > hint:
            most = end - 1
        elif broken and (begin := holds_from(condition, rows, length, (least, most), hint)):
            least = begin
        elif broken is not None:
            said = {rows: sympy.Symbol("B"), length: sympy.Symbol("S") / step}
            raise SizeError(
                f"model {name}: {source or 'its forward'} needs {condition.subs(said)}, which "
                f"B={broken[0]}, S={broken[1] * step} breaks (B rows of S tokens); its forward "
                "must compute every number of rows and tokens in one way"
            )
    _erase(graph, asserts)
    return lengths.from_to(least * step, most and most * step), apart


def _conditions(asserts: list[Node], env: Any) -> dict[sympy.Basic, str]:
    """Return what is asserted, guarded, or put off to be asserted, with its line of the model where
    that is known; over the symbols of the tokens' sizes, to which torch finds others equal. It
    writes down nothing of what it put off for B and S alone."""
    unwritten = {put_off.expr: "" for put_off in env.deferred_runtime_asserts.get(None, ())}
    guards = {guard.expr: _line_of(guard) for guard in env.guards}
    known = unwritten | guards | {_asserted(node): line_of(node) for node in asserts}
    return {env.replace(condition): source for condition, source in known.items()}


def _unlike(length: sympy.Basic, most: int, step: int) -> tuple[sympy.Basic, ...]:
    """What says that a row has not the most steps."""
    return sympy.Ne(length, most), sympy.Ne(length * step, most * step)


def _line_of(guard: object) -> str:
    """Return the place of a guard that torch recorded, as file and line, or nothing."""
    frame = getattr(getattr(guard, "sloc", None), "framework_loc", None)
    return short_line(frame.filename, frame.lineno) if frame is not None else ""


def _is_tokens(node: Node) -> bool:
    rows, *length = getattr(node.meta.get("val"), "shape", (0,)) or (0,)
    return len(length) == 1 and isinstance(rows, torch.SymInt)


def _asserted(node: Node) -> sympy.Basic:
    given = node.args[0]
    return expression_of(given.meta["val"] if isinstance(given, Node) else given)


def _erase(graph: Graph, nodes: list[Node]) -> None:
    """Take out nodes, and what was calculated for them alone."""
    doomed = set(nodes)
    for node in reversed(graph.nodes):
        if node in doomed and not node.users and node.op != "placeholder":
            doomed.update(node.all_input_nodes)
            graph.erase_node(node)
