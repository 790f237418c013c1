"""The sharding ILP: the placement of every value of a joint graph on a compute mesh.

Sets
    N  nodes (ops, params, cuts, given inputs; nodes.py), K(n) the strategies of node n
    V  values; A(v) the placements that v is made in, W(r) those that read r asks for
    R  reads: (node, position) of a value
    H  values held from forward to backward; P parameters
Variables, all 0/1
    x[n,k]     node n runs strategy k
    e[r,a,b]   read r takes its value from placement a to b
    m[v,p,q]   value v is moved from p to q by one collective, once however many read it
    s[v,b]     a copy of v in placement b is resident between forward and backward
Objective, in us
    sum x[n,k] (us(n,k) + price * bytes(n,k))      ops; params with their gradient and two moments
    + sum m[v,p,q] us(v,p,q) + sum s[v,b] price * bytes(v,b)
Constraints
    choose[n]      sum_k x[n,k] = 1
    leave[r,a]     sum_b e[r,a,b] = sum of x[n,k] of the maker over k that make v in a
    enter[r,b]     sum_a e[r,a,b] = sum of x[n,k] of the reader over k that read v in b
    once[r,p,q]    m[v,p,q] >= sum of e[r,a,b] over a, b whose cheapest way has the move p, q
    held[r,c]      s[v,c] >= sum of e[r,a,b] that need c        r in backward, v in H
    gathered[r,c]  s[v,c] >= sum of e[r,a,b] that need c        r in backward, v in P, c not a

cost/redistribution.py gives the ways; a move that several of them share is made once. A read from
a to b needs copy b resident, a slice the whole a that it is taken from.

The e of one read are a transport problem, so the relaxation is tight and nearly always integral.
Resident activations are the copies of forward values that backward reads, as if none were
recomputed. Reads that can only be in one way are written into the costs and have no variables.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TypeAlias

from meshwright.ir.graph import Graph, Value
from meshwright.ir.ops.registry import definition
from meshwright.ir.phases import Joint
from meshwright.ir.placement import Placement, format_placement

from .. import solver
from ..cost.graph_work import GraphWork
from ..cost.op_cost import Costs
from ..cost.redistribution import Move, MovePath, held_copy
from ..solver import Problem
from .nodes import Choice, Demands, Node, Ops, nodes_of

# Ties go to the first named: a price far below any time, by position.
TIE_US = 1e-5


@dataclass(frozen=True)
class Sharding:
    """The chosen placements of a joint graph on a compute mesh.

    made: each value where it is made. ops: the choice of each op in order, with its us. reads:
    per op the placement of each present operand. outputs: placement of each graph output (None for
    an absent one). objective_us counts resident bytes at the price; bound_us never exceeds the
    optimum. num_variables is the size of the problem solved.
    """

    made: dict[str, Placement]
    ops: tuple[Choice, ...]
    outputs: tuple[Placement | None, ...]
    objective_us: float
    bound_us: float
    branched: bool
    num_variables: int
    coverage: tuple[str, ...]

    @property
    def reads(self) -> tuple[tuple[Placement, ...], ...]:
        return tuple(choice.strategy.inputs for choice in self.ops)


@dataclass
class Program:
    """The problem of a graph at any price of a byte, number of micro-batches, and costs under which
    values are moved in the same ways.

    chosen: the x variables of each node. resident: bytes of the variables of copies. Their costs
    and those of the x are filled in by `at`. moves: what the variables of moves stand for, priced
    at `costs`. ways: moves of each value from one placement to another, where there are several.
    """

    graph: Graph
    problem: Problem
    chosen: list[list[int]]
    resident: dict[int, float]
    moves: dict[int, tuple[Value, Move]]
    ways: dict[tuple[str, Placement, Placement], MovePath]
    costs: Costs

    def fits(self, costs: Costs) -> bool:
        """Return whether values are moved in these ways at other costs; moves cost those then."""
        if costs is self.costs:
            return True
        values = self.graph.values
        if any(costs.moves(values[name], a, b) != way for (name, a, b), way in self.ways.items()):
            return False
        for variable, (value, move) in self.moves.items():
            self.problem.costs[variable] = costs.move_us(value, move)
        self.costs = costs
        return True

    def at(self, nodes: tuple[Node, ...], price: float, coverage: tuple[str, ...]) -> "Formulation":
        """Return the problem at a price, with what the choices of its nodes cost now."""
        costs, tie_us = self.problem.costs, 0.0
        for variable, size in self.resident.items():
            costs[variable] = price * size
        for node, variables in zip(nodes, self.chosen, strict=True):
            for k, (variable, choice) in enumerate(zip(variables, node.choices, strict=True)):
                costs[variable] = choice.us + price * choice.bytes + k * TIE_US
            tie_us += max(0, len(node.choices) - 1) * TIE_US
        return Formulation(self, nodes, tie_us, coverage)


# Of one graph, by their demands; those of equal ones differ in how values are moved.
Programs: TypeAlias = dict[Hashable, list[Program]]


@dataclass(frozen=True)
class Formulation:
    """A problem with its costs, and what is needed to read its solution back."""

    program: Program
    nodes: tuple[Node, ...]
    tie_us: float
    coverage: tuple[str, ...]


def shard(
    graph: Graph,
    costs: Costs,
    price: float,
    demands: Demands,
    ops: Ops | None = None,
    known: Programs | None = None,
) -> Sharding:
    """The cheapest placement of a joint graph: formulate, solve, invert.

    price: us per resident byte of a rank, 0 allowed. ops: nodes of the graph's ops, where they are
    known. known: problems of this graph, on this mesh at these sizes, that were formulated before.
    Raises InfeasibleError for contradicting pins.
    """
    posed = _posed(graph, costs, price, demands, ops, {} if known is None else known)
    return invert(posed, solver.solve(posed.program.problem))


def shard_or_bound(
    graph: Graph,
    costs: Costs,
    price: float,
    demands: Demands,
    ops: Ops,
    known: Programs,
) -> Sharding | float:
    """Return what `shard` does where that takes no branching, else a bound below its objective."""
    posed = _posed(graph, costs, price, demands, ops, known)
    found = solver.relax(posed.program.problem)
    return found - posed.tie_us if isinstance(found, float) else invert(posed, found)


def _posed(
    graph: Graph,
    costs: Costs,
    price: float,
    demands: Demands,
    ops: Ops | None,
    known: Programs,
) -> "Formulation":
    nodes, coverage = nodes_of(graph, costs, demands, ops)
    key = replace(demands, num_microbatches=1), price > 0
    posed = known.setdefault(key, [])
    found = next((program for program in posed if program.fits(costs)), None)
    if found is None:
        found = _Builder(graph, nodes, costs, price > 0, demands).build()
        posed.append(found)
    return found.at(nodes, price, coverage)


class _Builder:
    def __init__(
        self,
        graph: Graph,
        nodes: tuple[Node, ...],
        costs: Costs,
        priced: bool,
        demands: Demands,
    ) -> None:
        self.graph, self.nodes, self.costs, self.priced = graph, nodes, costs, priced
        self.problem = Problem()
        self.chosen: list[list[int]] = []
        self.maker = {
            name: (n, k) for n, node in enumerate(nodes) for k, name in enumerate(node.makes)
        }
        self.held = GraphWork(graph).held
        self.params = frozenset(i.value.name for i in graph.inputs_of("param"))
        self.fixed = _unmoved(graph, nodes) if demands.shard_matmul_weights else frozenset()
        self.moves: dict[tuple, int] = {}
        self.moved: dict[int, tuple[Value, Move]] = {}
        self.several: dict[tuple[str, Placement, Placement], MovePath] = {}
        self.copies: dict[tuple, int] = {}
        self.resident: dict[int, float] = {}

    def build(self) -> Program:
        for node in self.nodes:
            self._choose(node)
        for index, node in enumerate(self.nodes):
            for position, value in enumerate(node.reads):
                self._read(index, position, value)
        moves = self.moved, self.several, self.costs
        return Program(self.graph, self.problem, self.chosen, self.resident, *moves)

    def _choose(self, node: Node) -> None:
        names = (f"x[{node.name},{choice.strategy.name}]" for choice in node.choices)
        found = [self.problem.variable(name, 0.0, True) for name in names]
        self.chosen.append(found)
        self.problem.choices.append((found, len(node.reads) + len(node.makes)))
        self.problem.equal(f"choose[{node.name}]", [(v, 1.0) for v in found], 1.0)

    def _ways(self, index: int, of: Callable[[Choice], Placement]) -> dict[Placement, list[int]]:
        """The x variables of a node by the placement that `of` reads off their strategy."""
        ways: dict[Placement, list[int]] = {}
        for variable, choice in zip(self.chosen[index], self.nodes[index].choices, strict=True):
            ways.setdefault(of(choice), []).append(variable)
        return ways

    def _read(self, index: int, position: int, value: str) -> None:
        """Families leave, enter, once, held and gathered of one read."""
        maker, made = self.maker[value]
        sources = self._ways(maker, lambda c: c.strategy.outputs[made])
        targets = self._ways(index, lambda c: c.strategy.inputs[position])
        where = f"{self.nodes[index].name}:{position}"
        edges = self._edges(value, where, sources, targets)
        leaving: dict[Placement, list[int]] = {a: [] for a in sources}
        entering: dict[Placement, list[int]] = {b: [] for b in targets}
        for (a, b), edge in edges.items():
            leaving[a].append(edge)
            entering[b].append(edge)
        for family, taken, ways in (("leave", leaving, sources), ("enter", entering, targets)):
            for placement, variables in ways.items():
                terms = [(e, 1.0) for e in taken[placement]] + [(v, -1.0) for v in variables]
                name = f"{family}[{where},{format_placement(placement)}]"
                self.problem.equal(name, terms, 0.0)
        if self.nodes[index].backward:
            self._held(value, where, edges)

    def _edges(self, value: str, where: str, sources: dict, targets: dict) -> dict[tuple, int]:
        edges: dict[tuple, int] = {}
        moved: dict[Move, list[tuple[int, float]]] = {}
        item, fixed = self.graph.values[value], value in self.fixed
        texts = {p: format_placement(p) for p in (*sources, *targets)}
        for a in sources:
            for b in targets:
                way = None if fixed and a != b else self.costs.way(item, a, b)
                if way is None:
                    continue
                name = f"e[{where},{texts[a]},{texts[b]}]"
                edges[a, b] = edge = self.problem.variable(name, 0.0)
                if len(way[1]) > 1:  # one move is the only way
                    self.several[value, a, b] = way[1]
                for move in way[1]:
                    moved.setdefault(move, []).append((edge, -1.0))
        for move, terms in moved.items():
            made = self._move(item, move)
            self.problem.at_least(f"once[{where},{_ends(move)}]", [(made, 1.0), *terms], 0.0)
        return edges

    def _move(self, value: Value, move: Move) -> int:
        key = value.name, move.src, move.dst
        if key not in self.moves:
            cost = self.costs.move_us(value, move)
            made = self.problem.variable(f"m[%{value.name},{_ends(move)}]", cost)
            self.moves[key], self.moved[made] = made, (value, move)
        return self.moves[key]

    def _held(self, value: str, where: str, edges: dict[tuple, int]) -> None:
        if not self.priced or value not in self.held | self.params:
            return
        gathered = value in self.params
        needed: dict[Placement, list[tuple[int, float]]] = {}
        for (a, b), edge in edges.items():
            copy = held_copy(a, b, self.costs.mesh)
            if not (gathered and copy == a):
                needed.setdefault(copy, []).append((edge, -1.0))
        for copy, terms in needed.items():
            name = f"{'gathered' if gathered else 'held'}[{where},{format_placement(copy)}]"
            self.problem.at_least(name, [(self._copy(value, copy), 1.0), *terms], 0.0)

    def _copy(self, value: str, b: Placement) -> int:
        if (value, b) not in self.copies:
            made = self.problem.variable(f"s[%{value},{format_placement(b)}]", 0.0)
            self.resident[made] = self.costs.local_bytes(self.graph.values[value], b)
            self.copies[value, b] = made
        return self.copies[value, b]


def _ends(move: Move) -> str:
    return f"{format_placement(move.src)},{format_placement(move.dst)}"


def _unmoved(graph: Graph, nodes: tuple[Node, ...]) -> frozenset[str]:
    """Parameters that can only be sharded, and views: their matmuls must read them as they lie."""
    found = {
        node.makes[0]
        for node in nodes
        if node.name.startswith("param ")
        and all(
            c.strategy.outputs[0].dims != ((),) * len(c.strategy.outputs[0].dims)
            for c in node.choices
        )
    }
    for op in graph.ops:
        if definition(op).free and op.inputs[0] in found:
            found.add(op.output.name)
    return frozenset(found)


def invert(formulation: Formulation, solution: solver.Solution) -> Sharding:
    """The placements behind a solution's values."""
    program = formulation.program
    picked = [
        next(c for c, v in zip(node.choices, variables, strict=True) if solution.values[v])
        for node, variables in zip(formulation.nodes, program.chosen, strict=True)
    ]
    made = {
        name: placement
        for node, choice in zip(formulation.nodes, picked, strict=True)
        for name, placement in zip(node.makes, choice.strategy.outputs, strict=True)
    }
    graph = program.graph
    by_value = {n.makes[0]: c for n, c in zip(formulation.nodes, picked, strict=True) if n.makes}
    ties = sum(
        TIE_US * node.choices.index(choice)
        for node, choice in zip(formulation.nodes, picked, strict=True)
    )
    return Sharding(
        made={name: made[name] for name in graph.values},
        ops=tuple(by_value[op.output.name] for op in graph.ops),
        outputs=_outputs(formulation, picked),
        objective_us=solution.objective - ties,
        bound_us=min(solution.objective - ties, solution.bound - formulation.tie_us),
        branched=solution.branched,
        num_variables=len(program.problem.names),
        coverage=formulation.coverage,
    )


def _outputs(formulation: Formulation, picked: list[Choice]) -> tuple[Placement | None, ...]:
    """Placement of each output: as the cut, param or loss node that stands for it reads it."""
    graph = formulation.program.graph
    found: dict[str, Placement] = {}
    for node, choice in zip(formulation.nodes, picked, strict=True):
        for name, placement in zip(node.reads, choice.strategy.inputs, strict=True):
            found[f"{node.name} {name}"] = placement
    params = [i.value.name for i in graph.inputs_of("param")]
    loss = Joint(graph).loss
    readers = [f"output %{loss}"] if loss else []
    readers += [f"cut %{i.value.name}" for i in graph.inputs_of("grad")]
    readers += [f"cut %{i.value.name}" for i in graph.inputs_of("activation")] or [""]
    readers += [f"param %{p}" for p in params]
    return tuple(
        found[f"{reader} {name}"] if name else None
        for reader, name in zip(readers, graph.outputs, strict=True)
    )
