"""Boundary layouts: how the values that cross a cut may lie, read off the factors of their readers.

Context axes cut the sequence of every value. Along tensor axes a value is whole, or a factor of it
is cut that its readers leave cut: they neither sum over it nor need it whole before their next
kernel. Between norms that is the sequence (Korthikanti et al. 2022); of values of attention it is
the heads. Where every factor meets such an op (the sequence does not divide, say), all that divide
are offered.
"""

from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

from meshwright.ir.errors import PlanError
from meshwright.ir.graph import Graph, Op, Value
from meshwright.ir.mesh import CONTEXT, TENSOR, Mesh
from meshwright.ir.ops.questions import rule_of
from meshwright.ir.ops.registry import definition
from meshwright.ir.phases import forward_ops
from meshwright.ir.placement import Placement, Shard, format_placement
from meshwright.ir.sizes import B, Shape, Size, simplify_size

from ..cost.counts import number
from ..cost.op_cost import Costs
from .strategies import is_sequence, outer_of

Layout: TypeAlias = tuple[Placement, ...]  # of the values that cross a cut, in order

# More layouts of a cut than these are not tried: every pair of a segment's cuts is a problem.
MAX_LAYOUTS = 6


@dataclass(frozen=True)
class Cut:
    """A factor of a value: its dim, the size of what is more major in that dim, its own size."""

    dim: int
    outer: Size
    size: Size


def format_layout(layout: Layout) -> str:
    """Return the placements of a cut as text; "nothing" where nothing crosses it."""
    return ", ".join(map(format_placement, layout)) or "nothing"


def uncut(value: Value, mesh: Mesh, sizes: dict[str, int], mirrored: bool = False) -> Placement:
    """Return how a value lies that only context axes cut.

    A value without a sequence is whole on every rank, and one whose sequence has more tokens than a
    row, so that it does not divide. Raises PlanError where that of a row does not divide.
    """
    if sizes["S"] % mesh.count(CONTEXT):
        over, count = mesh.only(CONTEXT), mesh.count(CONTEXT)
        raise PlanError(
            f"S={sizes['S']} does not divide over {over}; give --seq as a multiple of {count}"
        )
    return _placed(value, None, mesh, _sequence(value.shape, mesh, sizes, mirrored), mirrored)


def layouts_of(
    graph: Graph, costs: Costs, mirrored: bool = False, whole_sequence: bool = False
) -> tuple[Layout, ...]:
    """Return the layouts worth trying of the cut before a joint graph, the whole one first.

    whole_sequence: tensor axes do not cut the sequence.

    Where several values cross, the first one's layouts are combined with those of the others; past
    MAX_LAYOUTS the others all lie whole, or all by the same one of their factors.
    """
    given = graph, costs, mirrored, whole_sequence
    each = [_options(i.value, *given) for i in graph.inputs_of("activation")]
    combined = list(product(*each))
    if len(combined) <= MAX_LAYOUTS:
        return tuple(combined)
    alike = [
        (first, *(options[min(k, len(options) - 1)] for options in each[1:]))
        for first in each[0]
        for k in range(2)
    ]
    return tuple(dict.fromkeys(alike[:MAX_LAYOUTS]))


def _options(
    value: Value, graph: Graph, costs: Costs, mirrored: bool, whole_sequence: bool
) -> list[Placement]:
    """How one value may cross the cut before a graph."""
    mesh, sizes = costs.mesh, costs.sizes
    plain = uncut(value, mesh, sizes, mirrored)
    if mesh.count(TENSOR) == 1:
        return [plain]
    ops = forward_ops(graph)
    cuts = [c for c in _cuts(value, ops, graph) if _divides(c, mesh, sizes)]
    cuts = [c for c in cuts if not (whole_sequence and is_sequence(c.size))]
    kept = [c for c in cuts if _stays_cut(c, value.name, ops, graph, costs)]
    sequence = _sequence(value.shape, mesh, sizes, mirrored)
    return [plain, *(_placed(value, c, mesh, sequence, mirrored) for c in kept or cuts)]


def _cuts(value: Value, ops: tuple[Op, ...], graph: Graph) -> list[Cut]:
    """The factors of a value, as its readers name them; its dims where none reads it."""
    found: dict[tuple[int, Size], Cut] = {}
    for op in ops:
        rule = rule_of(op, graph)
        if rule is None or value.name not in op.inputs:
            continue
        present = [name for name in op.inputs if name]
        for dim, factors in enumerate(rule.inputs[present.index(value.name)]):
            for factor in factors:
                outer = outer_of(factors, rule, factor)
                found.setdefault((dim, outer), Cut(dim, outer, rule.sizes[factor]))
    return list(found.values()) or [Cut(dim, 1, size) for dim, size in enumerate(value.shape)]


def _divides(cut: Cut, mesh: Mesh, sizes: dict[str, int]) -> bool:
    """Whether the tensor axes divide a factor; rows of the batch are never split."""
    if not isinstance(cut.size, int) and B in cut.size.free_symbols:
        return False
    ranks = mesh.count(TENSOR) * (mesh.count(CONTEXT) if is_sequence(cut.size) else 1)
    return number(cut.size, sizes) % ranks == 0


def _stays_cut(cut: Cut, name: str, ops: tuple[Op, ...], graph: Graph, costs: Costs) -> bool:
    """Whether no op up to the next kernels of a value sums over a factor, or needs it whole."""
    waiting, seen = [(name, cut.dim, cut.outer)], set()
    while waiting:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        for op in ops:
            if place[0] in op.inputs:
                after = _after(op, place, graph, costs)
                if not after:
                    return False
                waiting += after if _passes(op) else []
    return True


def _passes(op: Op) -> bool:
    """Whether what an op makes is still on the way to a kernel."""
    asked = definition(op)
    return asked.fused or asked.free


def _after(
    op: Op, place: tuple[str, int, Size], graph: Graph, costs: Costs
) -> list[tuple[str, int, Size]]:
    """Where a cut factor lies in what an op makes; nothing where it cannot stay cut."""
    name, dim, outer = place
    rule = rule_of(op, graph)
    if rule is None:
        return []
    factors = rule.inputs[[n for n in op.inputs if n].index(name)][dim]
    held = [f for f in factors if outer_of(factors, rule, f) == outer]
    ranks = costs.mesh.count(TENSOR)
    if not held or held[0] in rule.fixed or number(rule.sizes[held[0]], costs.sizes) % ranks:
        return []
    return [
        (value.name, at, outer_of(made, rule, held[0]))
        for value, dims in zip(op.outputs, rule.outputs, strict=False)
        for at, made in enumerate(dims)
        if held[0] in made
    ]


def _placed(
    value: Value, cut: Cut | None, mesh: Mesh, sequence: tuple[int | None, Size], mirrored: bool
) -> Placement:
    """A value whose sequence context axes cut, and a factor of which tensor axes do."""
    at, outer = sequence
    dims: list[list[Shard]] = [[] for _ in value.shape]
    if at is not None:
        for name in mesh.names(CONTEXT):
            dims[at].append(Shard(name, outer, mirrored))
            outer = simplify_size(outer * mesh.size(name))
    if cut is not None:
        within = outer if (cut.dim, cut.outer) == sequence else cut.outer
        for name in mesh.names(TENSOR):
            dims[cut.dim].append(Shard(name, within))
            within = simplify_size(within * mesh.size(name))
    return Placement(tuple(map(tuple, dims)))


def _sequence(
    shape: Shape, mesh: Mesh, sizes: dict[str, int], mirrored: bool
) -> tuple[int | None, Size]:
    """The dim that holds the sequence, and the size of what is more major in it: B * S has B; None
    where context axes do not divide it, as of a row that memory tokens are put before."""
    shards = mesh.count(CONTEXT) * (2 if mirrored else 1)
    for dim, size in enumerate(shape):
        if is_sequence(size) and number(size, sizes) % shards == 0:
            return dim, B if B in size.free_symbols else 1
    return None, 1
