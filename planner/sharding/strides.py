"""Shards inside a factor, and factors that the outer part of a split axis cuts alone.

A shard inside a factor is cut in several blocks first, each of which every rank has its part of. An
op offers such shards where a neighbour's shard lies so: from every plain shard the graph is walked
as far as each op can take what the one before it makes. The number of blocks changes where values
are packed into one (keys beside queries), and where one is unpacked; it may do so `_CHANGES` times,
from a value into what it is packed in and out to those beside it. Where those meet again in one
kernel, a longer walk goes round and finds ever finer blocks, as good as the coarser ones.
"""

from collections import deque
from dataclasses import dataclass

import sympy

from meshwright.ir.graph import Graph, Op
from meshwright.ir.ops.definition import Dims, Rule
from meshwright.ir.ops.questions import rule_of
from meshwright.ir.sizes import Size, simplify_size

from .strategies import Axis, outer_of

Strides = dict[tuple[int, str], set[int]]  # (op index, factor) -> blocks the factor is cut in first
Place = tuple[str, int]  # a dim of a value
_CHANGES = 2


@dataclass(frozen=True)
class _Shard:
    """Where a value is cut, the size of what lies outside the cut, and how often that changed on
    the way from a plain shard."""

    place: Place
    outer: Size
    changes: int = 0


def strides_of(graph: Graph, axis: Axis) -> Strides:
    """Return per op and factor the blocks that some neighbour's shard would cut it in first."""
    rules = _rules(graph)
    touching: dict[str, list[int]] = {}
    waiting: deque[_Shard] = deque()
    for index, rule in rules.items():
        for name in dict.fromkeys(name for name, _ in _places(graph.ops[index], rule)):
            touching.setdefault(name, []).append(index)
        for factor in rule.sizes:
            plain = _shards(graph.ops[index], rule, factor, 1, axis)
            waiting.extend(_Shard(*shard) for shard in plain)
    found: Strides = {}
    seen = {(shard.place, shard.outer): 0 for shard in waiting}
    while waiting:
        asker = waiting.popleft()
        for index in touching[asker.place[0]]:
            op, rule = graph.ops[index], rules[index]
            for factor, blocks in _answers(op, rule, axis, asker):
                found.setdefault((index, factor), set()).add(blocks)
                for shard in _shards(op, rule, factor, blocks, axis):
                    changes = asker.changes + (shard[1] != asker.outer)
                    if changes < seen.get(shard, _CHANGES + 1):
                        seen[shard] = changes
                        waiting.append(_Shard(*shard, changes))
    return found


def _rules(graph: Graph) -> dict[int, Rule]:
    """The factor rule of each op that has one, by its index."""
    return {k: rule for k, op in enumerate(graph.ops) if (rule := rule_of(op, graph)) is not None}


def alone_of(graph: Graph, axes: tuple[Axis, ...]) -> dict[int, set[str]]:
    """Return by op the factors that the outer part of a split axis may cut alone.

    These are the KV heads that it divides and both parts do not, and what lies in the same place of
    keys and values and of what they are made from. Queries are cut by both parts.
    """
    tensor = [axis for axis in axes if not axis.is_context]
    if len(tensor) < 2:
        return {}
    rules = _rules(graph)
    outer, inner = tensor
    found: dict[int, set[str]] = {}
    asked: set[tuple[Place, Size]] = set()
    for index, rule in rules.items():
        for factor in set(rule.sizes) - rule.fixed if rule.ordered else ():
            if not outer.divides(rule.sizes[factor], inner.size):
                found.setdefault(index, set()).add(factor)
                asked |= _shards(graph.ops[index], rule, factor, 1, outer, lone=True).keys()
    changed = True
    while changed:
        changed = False
        for index, rule in rules.items():
            known = found.setdefault(index, set())
            for factor in _asked_for(graph.ops[index], rule, asked) - known:
                changed |= _take(graph.ops[index], rule, factor, outer, known, asked)
    return found


def _take(op: Op, rule: Rule, factor: str, axis: Axis, known: set[str], asked: set) -> bool:
    """Note a factor that an axis cuts alone, and what it asks of the op's values."""
    if factor in rule.fixed or not axis.divides(rule.sizes[factor]):
        return False
    known.add(factor)
    asked |= _shards(op, rule, factor, 1, axis).keys()
    return True


def _asked_for(op: Op, rule: Rule, asked: set) -> set[str]:
    """Factors that lie where a value is asked to be cut."""
    return {
        factor
        for name, dims in _places(op, rule)
        for dim, factors in enumerate(dims)
        for factor in factors
        if ((name, dim), outer_of(factors, rule, factor)) in asked
    }


def _places(op: Op, rule: Rule) -> list[tuple[str, Dims]]:
    names = [n for n in op.inputs if n]
    return [
        *zip(names, rule.inputs, strict=True),
        *zip([v.name for v in op.outputs], rule.outputs, strict=False),
    ]


def _shards(
    op: Op, rule: Rule, factor: str, blocks: int, axis: Axis, lone: bool = False
) -> dict[tuple[Place, Size], None]:
    """Where shards of a factor lie; nothing where they are none. lone: in dims that hold no other
    factor."""
    if factor in rule.fixed or not axis.divides(rule.sizes[factor], blocks):
        return {}
    return {
        ((name, dim), simplify_size(outer_of(factors, rule, factor) * blocks)): None
        for name, dims in _places(op, rule)
        for dim, factors in enumerate(dims)
        if factor in factors and not (lone and len(factors) > 1)
    }


def _answers(op: Op, rule: Rule, axis: Axis, asked: _Shard) -> list[tuple[str, int]]:
    """(factor, blocks) by which the op can take a value in the shard that it is asked to have."""
    found = []
    for name, dims in _places(op, rule):
        for dim, factors in enumerate(dims):
            for factor in factors if (name, dim) == asked.place else ():
                blocks = _quotient(asked.outer, outer_of(factors, rule, factor))
                free = factor not in rule.fixed and blocks > 1
                if free and axis.divides(rule.sizes[factor], blocks):
                    found.append((factor, blocks))
    return found


def _quotient(outer: Size, inner: Size) -> int:
    """outer / inner where that is a number of blocks, else 0."""
    quotient = simplify_size(sympy.sympify(outer) / inner)
    return quotient if isinstance(quotient, int) else 0
