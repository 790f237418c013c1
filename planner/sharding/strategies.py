"""Strategies: the ways to run one op on a compute mesh, read off its factor rule.

Along one axis: whole everywhere; or one factor sharded wherever it appears, outputs that lack it
partial; or, for a linear op, operands and outputs still to be summed. Nothing here is specific to
an op: Megatron's column and row matmuls, vocabulary-parallel loss, head-parallel attention and
sequence sharding are four factors of four rules. On several axes the ways along each are composed;
two axes may cut one factor, the sequence by context before tensor, others by tensor first.

A context axis cuts the sequence wherever a factor holds it, and never a parameter. An op that needs
the order of the sequence (attention) may be cut by its heads instead, its operands exchanged before
it (Ulysses, Jacobs et al. 2023), or keep its shard of queries and read all keys, or those of its
shard and of the window before it.

A shard inside a factor (the thirds of a fused qkv) is offered where a neighbour asks for it, as
strides.py says.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

from meshwright.ir.graph import Graph, Op
from meshwright.ir.mesh import CONTEXT, ROLES, Mesh
from meshwright.ir.ops.call import replicated_note
from meshwright.ir.ops.definition import Dims, Rule
from meshwright.ir.ops.questions import rule_of
from meshwright.ir.placement import Placement, Shard, replicated, with_partial
from meshwright.ir.sizes import B, S, Size, simplify_size

from ..cost.counts import number


@dataclass(frozen=True)
class Strategy:
    """One way to run an op. `inputs` follow the op's present operands, `outputs` its outputs."""

    name: str
    inputs: tuple[Placement, ...]
    outputs: tuple[Placement, ...]


@dataclass(frozen=True)
class Axis:
    """A mesh axis that is being placed: its name, its size, and B and S to divide.

    mirrored: its shards of the sequence are. whole_sequence: it never cuts the sequence.
    """

    name: str
    size: int
    sizes: dict[str, int]
    mirrored: bool = False
    whole_sequence: bool = False

    @property
    def is_context(self) -> bool:
        return ROLES[self.name] == CONTEXT

    def divides(self, size: Size, blocks: int = 1) -> bool:
        """Return whether a factor splits evenly, `blocks` times; no row of a batch is split."""
        if not isinstance(size, int) and B in size.free_symbols:
            return False
        chunks = 2 if self.mirrored and is_sequence(size) else 1
        return number(size, self.sizes) % (self.size * blocks * chunks) == 0


def axes_of(
    mesh: Mesh, sizes: dict[str, int], mirrored: bool = False, whole_sequence: bool = False
) -> tuple[Axis, ...]:
    """The axes of a compute mesh. mirrored: context axes cut the sequence so. whole_sequence:
    tensor axes never do."""
    return tuple(
        Axis(name, size, sizes, mirrored and context, whole_sequence and not context)
        for name, size in mesh.axes
        for context in [ROLES[name] == CONTEXT]
    )


@dataclass(frozen=True)
class Way:
    """A way to run along one axis: a factor sharded in `blocks`, all partial, or whole (neither).

    reads_partial: partial sums pass through, operands included. beside: a second factor, sharded
    as the first is. halo: elements of the second that a rank holds before its own shard.
    """

    axis: Axis
    factor: str = ""
    blocks: int = 1
    reads_partial: bool = False
    beside: str = ""
    halo: int = 0

    def __str__(self) -> str:
        if self.reads_partial:
            return "partial"
        if not self.factor:
            return "replicated"
        blocks = f"/{self.blocks}" if self.blocks > 1 else ""
        beside = f" beside {self.beside}+{self.halo}" if self.beside else ""
        return f"shard {self.factor}{blocks}{beside}"


def strategies_of(
    op: Op,
    graph: Graph,
    axes: tuple[Axis, ...],
    strides: Mapping[str, Iterable[tuple[str, int]]] = MappingProxyType({}),
    alone: Iterable[str] = (),
) -> tuple[tuple[Strategy, ...], str]:
    """All strategies of an op without duplicates, replicated first, and a coverage warning or "".

    strides: by axis (factor, blocks) pairs to offer beside the plain shards. alone: factors that
    the outer part of a split axis may cut alone.
    """
    rule = rule_of(op, graph)
    if rule is None:
        return (_replicated(op, graph),), replicated_note(op, graph.name)
    each = [_ways(rule, axis, strides.get(axis.name, ())) for axis in axes]
    found = (_strategy(rule, ways) for ways in product(*each) if _agree(rule, ways, alone))
    return _distinct([s for s in found if s is not None]), ""


def _ways(rule: Rule, axis: Axis, strides: Iterable[tuple[str, int]]) -> list[Way]:
    """The ways along one axis, whole first."""
    offered = _offered(rule, axis, strides)
    found = [Way(axis, f, b) for f, b in offered if axis.divides(rule.sizes[f], b)]
    near = [(f, g, n) for f, g, n in rule.reach if _reaches(rule, axis, f, n)]
    found += [Way(axis, f, beside=g, halo=n) for f, g, n in near]
    if axis.is_context and any(_holds_sequence(rule, way.factor) for way in found):
        return found
    partial = [Way(axis, reads_partial=True)] if rule.linear else []
    return [Way(axis), *found, *partial]


def _reaches(rule: Rule, axis: Axis, factor: str, halo: int) -> bool:
    """Whether what a contiguous shard reads before itself lies in the shard before."""
    if not axis.is_context or axis.mirrored or not axis.divides(rule.sizes[factor]):
        return False
    return halo * axis.size <= number(rule.sizes[factor], axis.sizes)


def _offered(rule: Rule, axis: Axis, strides: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """(factor, blocks) that an axis may cut."""
    free = [f for f in rule.sizes if f not in rule.fixed]
    if axis.whole_sequence:
        free = [f for f in free if not _holds_sequence(rule, f)]
    if not axis.is_context:
        return [(f, 1) for f in free] + [(f, b) for f, b in sorted(strides) if f in free]
    along = [f for f in (*free, *sorted(rule.ordered)) if _holds_sequence(rule, f)]
    heads = [f for f in free if rule.ordered and f not in along]
    return [(f, 1) for f in (*along, *heads)]


def _holds_sequence(rule: Rule, factor: str) -> bool:
    return is_sequence(rule.sizes.get(factor, 1))


def is_sequence(size: Size) -> bool:
    """Return whether a factor is the sequence or a part of it."""
    return not isinstance(size, int) and S in size.free_symbols


def _replicated(op: Op, graph: Graph) -> Strategy:
    ins = tuple(replicated(len(graph.values[n].shape)) for n in op.inputs if n)
    return Strategy("replicated", ins, tuple(replicated(len(v.shape)) for v in op.outputs))


def _strategy(rule: Rule, ways: tuple[Way, ...]) -> Strategy | None:
    """The ways along all axes at once; None where an output lacks a sharded factor and cannot
    reduce, or where two axes do not divide a factor together."""
    ways = _in_order(rule, ways)
    if not _divide(rule, ways):
        return None
    ins = [_placed(dims, rule, ways) for dims in rule.inputs]
    outs = []
    for index, dims in enumerate(rule.outputs):
        placement: Placement | None = _placed(dims, rule, ways, summed=True)
        for way in ways:
            placement = placement and _reduced(placement, rule, index, way)
        if placement is None:
            return None
        outs.append(placement)
    for way in ways:
        if way.reads_partial:
            ins = [with_partial(p, way.axis.name, "sum") for p in ins]
            outs = [with_partial(p, way.axis.name, "sum") for p in outs]
    named = sorted(ways, key=lambda way: way.axis.name)
    return Strategy(_name(named), tuple(ins), tuple(outs))


def _name(ways: list[Way]) -> str:
    if len(ways) == 1:
        return str(ways[0])
    return "; ".join(f"{way.axis.name} {way}" for way in ways)


def _agree(rule: Rule, ways: tuple[Way, ...], alone: Iterable[str]) -> bool:
    """Whether the inner part of a tensor axis goes with the outer one.

    It cuts what the outer part cuts, sums what it sums, and stays whole with it. Beside KV heads
    that the outer part alone cuts, it cuts the group of queries of each, sums the gradients of
    keys and values that its ranks share, or holds them whole.
    """
    tensor = [way for way in ways if not way.axis.is_context]
    if len(tensor) < 2:
        return True
    outer, inner = tensor
    if _what(inner) == _what(outer):
        return True
    return outer.factor in alone and (not inner.factor or bool(rule.ordered))


def _what(way: Way) -> tuple[str, int, bool]:
    return way.factor, way.blocks, way.reads_partial


def _in_order(rule: Rule, ways: tuple[Way, ...]) -> tuple[Way, ...]:
    """Ways in the order in which they cut a factor that they share: the sequence by context first,
    anything else by it last."""
    first = [w for w in ways if w.axis.is_context and _holds_sequence(rule, w.factor)]
    rest = [w for w in ways if w not in first]
    return (
        *first,
        *(w for w in rest if not w.axis.is_context),
        *(w for w in rest if w.axis.is_context),
    )


def _divide(rule: Rule, ways: tuple[Way, ...]) -> bool:
    """Whether axes that share a factor divide it together, in the same blocks."""
    shared = [w for w in ways if w.factor and sum(v.factor == w.factor for v in ways) > 1]
    if not shared:
        return True
    first, *others = shared
    total = math.prod(w.axis.size for w in shared) * first.blocks
    size = number(rule.sizes[first.factor], first.axis.sizes)
    return size % total == 0 and all(w.blocks == first.blocks for w in others)


def _reduced(placement: Placement, rule: Rule, index: int, way: Way) -> Placement | None:
    """The placement of an output that lacks a way's factor: partial, or None."""
    if not way.factor or placement.shard_dim(way.axis.name) is not None:
        return placement
    reduce = rule.reduce[index].get(way.factor) if index < len(rule.reduce) else None
    return None if reduce is None else with_partial(placement, way.axis.name, reduce)


def _placed(dims: Dims, rule: Rule, ways: tuple[Way, ...], summed: bool = False) -> Placement:
    """A value's shards: each factor cut by its ways in order, nested in what lies outside it.

    summed: what ranks make of a halo is still to be added.
    """
    placed = []
    for factors in dims:
        shards = []
        for factor in factors:
            inside = 1
            for way in ways:
                if factor in (way.factor, way.beside):
                    outer = outer_of(factors, rule, factor) * way.blocks * inside
                    mirrored = way.axis.mirrored and _holds_sequence(rule, factor)
                    halo = way.halo if factor == way.beside else 0
                    given = mirrored, halo, summed and halo > 0
                    shards.append(Shard(way.axis.name, simplify_size(outer), *given))
                    inside *= way.axis.size
        placed.append(tuple(shards))
    return Placement(tuple(placed))


def outer_of(factors: tuple[str, ...], rule: Rule, factor: str) -> Size:
    """Return the product of the factors more major than `factor` in its dim."""
    outer: Size = 1
    for name in factors[: factors.index(factor)]:
        outer = outer * rule.sizes[name]
    return simplify_size(outer)


def _distinct(found: list[Strategy]) -> tuple[Strategy, ...]:
    kept = {(s.inputs, s.outputs): s for s in reversed(found)}
    return tuple(reversed(kept.values()))
