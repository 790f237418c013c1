"""The memory frontier of a segment: which forward values to keep, at every price of a byte.

Two 0/1 families over the forward ops and values of a lowered joint graph:

    r_op   op is computed again in backward
    a_v    forward value v, or the segment's input, is there in backward

    minimise   sum us_op r_op  +  price * (sum bytes_v [a_v = 1, r_op(v) = 0]  +  bytes_x a_x)
    needed     a_v = 1 for all that backward reads
    operands   r_op = 1 makes a_u = 1 for the operands u that are not given
    views      a_v = 1 makes r_op(v) = 1 where the op is a view: free, its storage is kept instead

Every pair of variables occurs as u (1 - w) with a weight >= 0, so a price is one s-t minimum cut:
1 is the source's side. Outputs of one op share its r. A choice is a point (kept bytes, us); those
that some price prefers are the vertices of the lower hull, found by asking, between two of them,
at the price that makes the two equal. Prices are ratios of whole numbers (bytes, picoseconds), so
the cuts are exact where these fit the solver. A choice need not hold another one: what is kept at a
low price may be left out at a higher one and come back at a third.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import gcd

from meshwright.ir.graph import Graph, Op
from meshwright.ir.ops.questions import without_passing
from meshwright.ir.ops.registry import definition
from meshwright.ir.phases import Joint, forward_ops
from meshwright.ir.placement import Placement

from ..cost.op_cost import Costs
from ..cost.piece_cost import op_us
from ..solver import Arc, source_side
from .rules import saved_under

PICOSECONDS = 1e6  # of a us


@dataclass(frozen=True)
class FrontierPoint:
    """bytes: kept of one micro-batch on a rank, the segment's input with it. again_ps: picoseconds
    of what is computed again. saved: names, in order of definition."""

    bytes: int
    again_ps: int
    saved: tuple[str, ...]


@dataclass(frozen=True)
class Weights:
    """Whole numbers of one graph: picoseconds by an op's first output, bytes by value."""

    again_ps: dict[str, int]
    bytes: dict[str, int]


def frontier(
    graph: Graph, placements: dict[str, Placement], costs: Costs
) -> tuple[FrontierPoint, ...]:
    """Vertices of the hull of a lowered joint graph, from the most bytes to the fewest; without
    values that backward can do without."""
    graph = without_passing(graph)
    return hull(graph, weights_of(graph, placements, costs))


def weights_of(graph: Graph, placements: dict[str, Placement], costs: Costs) -> Weights:
    """An op again takes what it takes in a forward that keeps nothing, fused with its neighbours;
    `piece_cost.piece_work` gives the exact price of a choice."""
    forward = costs.functions.of(graph, ()).forward
    values = [v for op in forward.graph.ops for v in op.outputs]
    values += [i.value for i in graph.inputs_of("activation")]
    return Weights(
        {
            op.output.name: round(PICOSECONDS * op_us(op, forward, placements, costs))
            for op in forward.graph.ops
        },
        {v.name: round(costs.local_bytes(v, placements[v.name])) for v in values},
    )


def hull(graph: Graph, weights: Weights) -> tuple[FrontierPoint, ...]:
    """Vertices of the lower hull of (bytes, again_ps), from the most bytes to the fewest."""
    problem = _Problem(graph, weights)
    most_ps = 1 + sum(weights.again_ps.values())
    most_bytes = problem.unit_bytes + sum(weights.bytes.values())
    fastest, leanest = problem.best(most_bytes, 1), problem.best(1, most_ps)
    if fastest.bytes == leanest.bytes:
        return (fastest,)
    return (fastest, *_between(problem.best, fastest, leanest), leanest)


def _between(
    best: Callable[[int, int], FrontierPoint], a: FrontierPoint, b: FrontierPoint
) -> tuple[FrontierPoint, ...]:
    """The vertices between two: none is when no choice lies below their line."""
    price = Fraction(b.again_ps - a.again_ps, a.bytes - b.bytes)
    of_ps, of_byte = price.denominator, price.numerator
    found = best(of_ps, of_byte)
    below = of_ps * found.again_ps + of_byte * found.bytes
    if below >= of_ps * a.again_ps + of_byte * a.bytes:
        return ()
    return (*_between(best, a, found), found, *_between(best, found, b))


class _Problem:
    """The cut problem of a graph, solved at one price after another."""

    def __init__(self, graph: Graph, weights: Weights) -> None:
        self.graph, self.weights = graph, weights
        self.ops = forward_ops(graph)
        self.maker = {v.name: op for op in self.ops for v in op.outputs}
        self.entries = {i.value.name for i in graph.inputs_of("activation")}
        backward = [op for op in graph.ops if op.output.name not in self.maker]
        read = [n for op in backward for n in op.inputs] + list(Joint(graph).results)
        self.read = [n for n in dict.fromkeys(read) if n in self.maker or n in self.entries]
        self.unit_bytes = gcd(*weights.bytes.values()) or 1

    def best(self, of_ps: int, of_byte: int) -> FrontierPoint:
        """The choice of least of_ps * again_ps + of_byte * bytes."""
        if not self.read:
            return FrontierPoint(0, 0, ())
        # Whole numbers with no common divisor, as small as they can be.
        of_unit = of_byte * self.unit_bytes
        common = gcd(of_ps, of_unit)
        kept_side = source_side(self._arcs(of_ps // common, of_unit // common), "source", "sink")
        again = {op.output.name for op in self.ops if ("r", op.output.name) in kept_side}
        return self.choice(again)

    def choice(self, again: set[str]) -> FrontierPoint:
        """What is kept, and what of `again` is run, when these ops may be computed again."""
        saved, reached = saved_under(self.graph, lambda op: op.output.name in again)
        run = {self.maker[n].output.name for n in reached} & again
        held = set(saved) | self._entries_read(run)
        return FrontierPoint(
            sum(self.weights.bytes[n] for n in held),
            sum(self.weights.again_ps[n] for n in run),
            saved,
        )

    def _entries_read(self, run: set[str]) -> set[str]:
        again = {n for name in run for n in self.maker[name].inputs}
        return self.entries & (again | set(self.read))

    def _arcs(self, of_ps: int, of_unit: int) -> list[Arc]:
        arcs: list[Arc] = [("source", ("a", name), None) for name in self.read]
        for name in self.entries:
            arcs.append((("a", name), "sink", self._kept(name, of_unit)))
        for op in self.ops:
            arcs += self._arcs_of(op, of_ps, of_unit)
        return arcs

    def _kept(self, name: str, of_unit: int) -> int:
        return of_unit * (self.weights.bytes[name] // self.unit_bytes)

    def _arcs_of(self, op: Op, of_ps: int, of_unit: int) -> Iterator[Arc]:
        again = ("r", op.output.name)
        yield again, "sink", of_ps * self.weights.again_ps[op.output.name]
        for value in op.outputs:
            free = definition(op).free
            yield ("a", value.name), again, None if free else self._kept(value.name, of_unit)
        for name in op.inputs:
            if name in self.maker or name in self.entries:
                yield again, ("a", name), None
