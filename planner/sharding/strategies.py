"""Strategies: the ways to run one op on one mesh axis, read off its factor rule.

Whole everywhere; or one factor sharded wherever it appears, outputs that lack it partial; or, for
a linear op, operands and outputs still to be summed. Nothing here is specific to an op: Megatron's
column and row matmuls, vocabulary-parallel loss, head-parallel attention and sequence sharding are
four factors of four rules.

A shard inside a factor (the thirds of a fused qkv) is offered where a neighbour asks for it:
`strides_of` walks the graph until no op has anything new to ask.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import sympy

from meshwright.ir.graph import Graph, Op
from meshwright.ir.ops.table import Dims, Rule, rule_of
from meshwright.ir.placement import Placement, Shard, replicated, with_partial
from meshwright.ir.sizes import B, Size, evaluate, simplify_size

Strides = dict[tuple[int, str], set[int]]  # (op index, factor) -> blocks the factor is cut in first


@dataclass(frozen=True)
class Strategy:
    """One way to run an op. `inputs` follow the op's present operands, `outputs` its outputs."""

    name: str
    inputs: tuple[Placement, ...]
    outputs: tuple[Placement, ...]


@dataclass(frozen=True)
class Axis:
    """The mesh axis that is being placed: its name, its size, and B and S to divide."""

    name: str
    size: int
    sizes: dict[str, int]

    def divides(self, size: Size, blocks: int = 1) -> bool:
        """Whether a factor splits evenly, `blocks` times; rows of the batch are never split."""
        if not isinstance(size, int) and B in size.free_symbols:
            return False
        return _evaluated(size, tuple(self.sizes.items())) % (self.size * blocks) == 0


@lru_cache(maxsize=65536)
def _evaluated(size: Size, sizes: tuple[tuple[str, int], ...]) -> float:
    """The size as a number; a broken one, which nothing divides, for a split that is uneven."""
    try:
        return evaluate(size, dict(sizes))
    except ValueError:
        return 0.5


def strategies_of(
    op: Op, graph: Graph, axis: Axis, strides: Iterable[tuple[str, int]] = ()
) -> tuple[tuple[Strategy, ...], str]:
    """All strategies of an op without duplicates, replicated first, and a coverage warning or "".

    strides: (factor, blocks) pairs to offer beside the plain shards.
    """
    whole = _replicated(op, graph)
    rule = rule_of(op, graph)
    if rule is None:
        where = op.source or f"graph {graph.name}"
        return (whole,), f"{op.target} has no factor rule and stays replicated ({where})"
    found = [whole]
    for factor, blocks in [*((f, 1) for f in rule.sizes), *sorted(strides)]:
        if factor in rule.fixed or not axis.divides(rule.sizes[factor], blocks):
            continue
        strategy = _sharded(rule, factor, blocks, axis.name)
        found += [strategy] if strategy is not None else []
    if rule.linear:
        found.append(_linear(op, graph, axis.name))
    return _distinct(found), ""


def _replicated(op: Op, graph: Graph) -> Strategy:
    ins = tuple(replicated(len(graph.values[n].shape)) for n in op.inputs if n)
    return Strategy("replicated", ins, tuple(replicated(len(v.shape)) for v in op.outputs))


def _sharded(rule: Rule, factor: str, blocks: int, axis: str) -> Strategy | None:
    """The factor sharded wherever it appears; None where an output lacks it and cannot reduce."""
    ins = tuple(_placed(dims, rule, factor, blocks, axis) for dims in rule.inputs)
    outs = []
    for index, dims in enumerate(rule.outputs):
        placement = _placed(dims, rule, factor, blocks, axis)
        if placement.shard_dim(axis) is None:
            reduce = rule.reduce[index].get(factor) if index < len(rule.reduce) else None
            if reduce is None:
                return None
            placement = with_partial(placement, axis, reduce)
        outs.append(placement)
    return Strategy(f"shard {factor}" + (f"/{blocks}" if blocks > 1 else ""), ins, tuple(outs))


def _placed(dims: Dims, rule: Rule, factor: str, blocks: int, axis: str) -> Placement:
    placed: list[tuple[Shard, ...]] = []
    for factors in dims:
        if factor in factors:
            outer = _outer(factors, rule, factor)
            placed.append((Shard(axis, simplify_size(outer * blocks)),))
        else:
            placed.append(())
    return Placement(tuple(placed))


def _outer(factors: tuple[str, ...], rule: Rule, factor: str) -> Size:
    """Product of the factors more major than `factor` in its dim."""
    outer: Size = 1
    for name in factors[: factors.index(factor)]:
        outer = outer * rule.sizes[name]
    return simplify_size(outer)


def _linear(op: Op, graph: Graph, axis: str) -> Strategy:
    whole = _replicated(op, graph)
    return Strategy(
        "partial",
        tuple(with_partial(p, axis, "sum") for p in whole.inputs),
        tuple(with_partial(p, axis, "sum") for p in whole.outputs),
    )


def _distinct(found: list[Strategy]) -> tuple[Strategy, ...]:
    kept = {(s.inputs, s.outputs): s for s in reversed(found)}
    return tuple(reversed(kept.values()))


def strides_of(graph: Graph, axis: Axis) -> Strides:
    """Per op and factor the blocks that some neighbour's shard would cut it in first."""
    rules = {k: rule for k, op in enumerate(graph.ops) if (rule := rule_of(op, graph)) is not None}
    asked: dict[tuple[str, int], set[Size]] = {}  # (value, dim) -> outers of its shards
    found: Strides = {}
    for index, rule in rules.items():
        for factor in rule.sizes:
            _ask(graph.ops[index], rule, factor, 1, axis, asked)
    changed = True
    while changed:
        changed = False
        for index, rule in rules.items():
            for factor, blocks in _answers(graph.ops[index], rule, axis, asked):
                known = found.setdefault((index, factor), set())
                if blocks not in known:
                    known.add(blocks)
                    _ask(graph.ops[index], rule, factor, blocks, axis, asked)
                    changed = True
    return found


def _places(op: Op, rule: Rule) -> list[tuple[str, Dims]]:
    names = [n for n in op.inputs if n]
    return [
        *zip(names, rule.inputs, strict=True),
        *zip([v.name for v in op.outputs], rule.outputs, strict=False),
    ]


def _ask(op: Op, rule: Rule, factor: str, blocks: int, axis: Axis, asked: dict) -> None:
    if factor in rule.fixed or not axis.divides(rule.sizes[factor], blocks):
        return
    for name, dims in _places(op, rule):
        for dim, factors in enumerate(dims):
            if factor in factors:
                outer = simplify_size(_outer(factors, rule, factor) * blocks)
                asked.setdefault((name, dim), set()).add(outer)


def _answers(op: Op, rule: Rule, axis: Axis, asked: dict) -> list[tuple[str, int]]:
    """(factor, blocks) by which the op can take shards that its values are asked to have."""
    found = []
    for name, dims in _places(op, rule):
        for dim, factors in enumerate(dims):
            for outer in asked.get((name, dim), ()):
                for factor in factors:
                    blocks = _quotient(outer, _outer(factors, rule, factor))
                    free = factor not in rule.fixed and blocks > 1
                    if free and axis.divides(rule.sizes[factor], blocks):
                        found.append((factor, blocks))
    return found


def _quotient(outer: Size, inner: Size) -> int:
    """outer / inner where that is a number of blocks, else 0."""
    quotient = simplify_size(sympy.sympify(outer) / inner)
    return quotient if isinstance(quotient, int) else 0
