"""The one door to OR-tools: named 0/1 problems, the linear relaxation first, and minimum cuts.

The relaxation of a placement problem is nearly always integral: then its value is the proven
optimum. Where a variable comes out fractional, the choice with the most ties to others is made in
each way, and the relaxations are solved again, the one of the least bound first. Few are needed;
where they become many, a branching solver goes on. One thread, no time-dependent choice: the same
problem gives the same answer.
"""

import heapq
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from meshwright.ir.errors import InfeasibleError, PlanError

_INTEGRAL = 1e-6
# Presolving settles most placements whose relaxation is fractional. On those of a gated delta rule
# cutting planes save no node, trying branches first takes two fifths of SCIP's time, and looking
# for good solutions before the tree is searched another quarter.
_WITHOUT = ("feaspump", "alns", "rins", "crossover", "randrounding", "clique", "locks", "vbounds")
_BRANCHING = "\n".join(
    [
        "separating/maxrounds = 0",
        "separating/maxroundsroot = 0",
        "propagating/probing/maxprerounds = 0",
        "branching/relpscost/initcand = 0",
        *(f"heuristics/{name}/freq = -1" for name in (*_WITHOUT, "shiftandpropagate")),
    ]
)
# Of placements the dual simplex takes half the time of the primal.
_PLACEMENTS = "use_dual_simplex:1"
# Relaxations of one problem with choices made, before a branching solver takes it.
_MOST_BRANCHES = 40
# On the pipelines of a 70B the dual simplex takes an eighth of the time less than the primal, and
# half of that where the program is left as it is: then it goes on from the solution before the rows
# that were added. No program is known to take a tenth of the most iterations.
_PIPELINES = (
    "use_dual_simplex:1 use_preprocessing:false use_scaling:false max_number_of_iterations:100000"
)

# Of a program that it gave up on.
_SCALED = (
    "use_dual_simplex:0 use_preprocessing:true use_scaling:true max_number_of_iterations:100000"
)


@dataclass
class Problem:
    """Minimise costs @ x over 0 <= x <= uppers and rows lower <= coefficients @ x <= upper.

    integer: indices that must end at 0 or 1; the others follow them. choices: groups of these of
    which one is 1, each with the number of its ties to others; every index is in one, or none is.
    """

    names: list[str] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    uppers: list[float] = field(default_factory=list)
    integer: list[int] = field(default_factory=list)
    choices: list[tuple[list[int], int]] = field(default_factory=list)
    rows: list[tuple[str, list[tuple[int, float]], float, float]] = field(default_factory=list)
    # The solver of its relaxation, for other costs; GLOP begins anew at every solve.
    _relaxed: tuple[Any, list] | None = field(default=None, compare=False, repr=False)

    def variable(self, name: str, cost: float, integer: bool = False, upper: float = 1.0) -> int:
        self.names.append(name)
        self.costs.append(cost)
        self.uppers.append(upper)
        if integer:
            self.integer.append(len(self.names) - 1)
        return len(self.names) - 1

    def relaxed(self) -> tuple[Any, list]:
        """Return a solver of the relaxation and its variables, made once: no rows may follow."""
        if self._relaxed is None:
            self._relaxed = _built(self, "GLOP", False)
            self._relaxed[0].SetSolverSpecificParametersAsString(_PLACEMENTS)
        return self._relaxed

    def equal(self, name: str, terms: Iterable[tuple[int, float]], value: float) -> None:
        self.rows.append((name, list(terms), value, value))

    def at_least(self, name: str, terms: Iterable[tuple[int, float]], value: float) -> None:
        self.rows.append((name, list(terms), value, float("inf")))


@dataclass(frozen=True)
class Solution:
    """values: 0/1 per variable. bound: value of the linear relaxation."""

    values: tuple[int, ...]
    objective: float
    bound: float
    branched: bool


def solve(problem: Problem) -> Solution:
    """Raise InfeasibleError naming the first family at fault, PlanError without OR-tools."""
    found = relax(problem)
    if isinstance(found, Solution):
        return found
    return (_branched if problem.choices else _by_branching_solver)(problem, found)


def relax(problem: Problem) -> Solution | float:
    """Return the solution where the linear relaxation is integral, its value where it is not.

    Raises as `solve` does.
    """
    relaxed = problem.relaxed()
    _price(*relaxed, problem)
    found, bound = _run(problem, "GLOP", *relaxed)
    if not _is_integral(problem, found):
        return bound
    values = tuple(map(round, found))
    return Solution(values, _objective(problem, values), bound, False)


def _branched(problem: Problem, bound: float) -> Solution:
    """The optimum of a problem whose relaxation is fractional, and is worth `bound`."""
    solver, variables = problem.relaxed()
    best: tuple[int, ...] | None = None
    least, order = float("inf"), count()
    waiting: list[tuple[float, int, dict[int, int]]] = [(bound, next(order), {})]
    for _ in range(_MOST_BRANCHES):
        if not waiting or waiting[0][0] >= least:
            break
        *_, made = heapq.heappop(waiting)
        found, value = _with_made(solver, variables, made)
        if value >= least:
            continue
        if _is_integral(problem, found):
            best, least = tuple(map(round, found)), value
            continue
        for more in _ways_on(problem, found):
            heapq.heappush(waiting, (value, next(order), made | more))
    if best is None or (waiting and waiting[0][0] < least):
        return _by_branching_solver(problem, bound)
    return Solution(best, _objective(problem, best), bound, True)


def _with_made(solver: Any, variables: list, made: dict[int, int]) -> tuple[list[float], float]:
    """Solve a relaxation with some variables at 0 or 1: values and their cost, infinite if none."""
    for index, value in made.items():
        variables[index].SetBounds(value, value)
    status = solver.Solve()
    found = _values(solver) if status == solver.OPTIMAL else []
    cost = solver.Objective().Value() if found else float("inf")
    for index in made:
        variables[index].SetBounds(0, 1)
    return found, cost


def _is_integral(problem: Problem, values: list[float]) -> bool:
    return all(abs(values[k] - round(values[k])) <= _INTEGRAL for k in problem.integer)


def _ways_on(problem: Problem, values: list[float]) -> list[dict[int, int]]:
    """What to make of the fractional choice with the most ties: each of its ways in turn, those
    that the solution takes the most of first, then none of these."""

    def mixed(choice: tuple[list[int], int]) -> bool:
        return any(abs(values[k] - round(values[k])) > _INTEGRAL for k in choice[0])

    ways, _ = max(filter(mixed, problem.choices), key=lambda choice: choice[1])
    taken = sorted((k for k in ways if values[k] > _INTEGRAL), key=lambda k: -values[k])
    rest = [dict.fromkeys(taken, 0)] if len(taken) < len(ways) else []
    return [{k: 1} for k in taken] + rest


def _by_branching_solver(problem: Problem, bound: float) -> Solution:
    solver, variables = _built(problem, "SCIP", True)
    solver.SetSolverSpecificParametersAsString(_BRANCHING)
    values = tuple(map(round, _run(problem, "SCIP", solver, variables)[0]))
    return Solution(values, _objective(problem, values), bound, True)


class LinearProgram:
    """The linear relaxation of a problem, solved again as rows are added."""

    def __init__(self, problem: Problem) -> None:
        self._solver, self._variables = _built(problem, "GLOP", False)
        self._solver.SetSolverSpecificParametersAsString(_PIPELINES)

    def at_least(self, terms: Sequence[tuple[int, float]], value: float) -> int:
        """Add a row, and return its index after those of the problem."""
        row = self._solver.Constraint(value, float("inf"))
        for index, coefficient in _summed(terms).items():
            row.SetCoefficient(self._variables[index], coefficient)
        return self._solver.NumConstraints() - 1

    def require(self, row: int, least: float) -> None:
        """Ask a row to be at least so much. row: its index, as `at_least` returned it."""
        self._solver.constraints()[row].SetLb(least)

    def solve(self) -> float | None:
        """Return the optimum; None where nothing satisfies the rows, 0 where the solver gave up.

        Where it gives up near what is infeasible, it finds out when it goes on from there. Where
        it gives up again, it begins anew with the rows scaled.
        """
        ends = self._solver.OPTIMAL, self._solver.INFEASIBLE
        if (status := self._solver.Solve()) not in ends:
            status = self._solver.Solve()
        if status not in ends:
            status = self._solve_anew()
        if status == self._solver.INFEASIBLE:
            return None
        return self._solver.Objective().Value() if status == self._solver.OPTIMAL else 0.0

    def _solve_anew(self) -> int:
        anew = _ortools().MPSolverParameters()
        anew.SetIntegerParam(anew.INCREMENTALITY, anew.INCREMENTALITY_OFF)
        self._solver.SetSolverSpecificParametersAsString(_SCALED)
        status = self._solver.Solve(anew)
        self._solver.SetSolverSpecificParametersAsString(_PIPELINES)
        return status

    def values(self) -> list[float]:
        """Return the values of all variables in the last solution; no row may have been added
        since."""
        return _values(self._solver)

    def prices(self) -> list[float]:
        """Return the dual value of every row in the last solution; as for `values`."""
        return list(_solution(self._solver).dual_value)


def _objective(problem: Problem, values: tuple[int, ...]) -> float:
    return sum(cost * value for cost, value in zip(problem.costs, values, strict=True))


def _run(problem: Problem, backend: str, solver: Any, variables: list) -> tuple[list[float], float]:
    status = solver.Solve()
    if status != _ortools().Solver.OPTIMAL:
        raise InfeasibleError(_why(problem, backend, status, _ortools()))
    return _values(solver), solver.Objective().Value()


def _values(solver: Any) -> list[float]:
    """Return the values of all variables: a message of them takes a tenth of a call for each."""
    return list(_solution(solver).variable_value)


def _solution(solver: Any) -> Any:
    from ortools.linear_solver.linear_solver_pb2 import MPSolutionResponse

    message = MPSolutionResponse()
    solver.FillSolutionResponseProto(message)
    return message


def _built(problem: Problem, backend: str, integral: bool) -> tuple[Any, list]:
    """A solver of the problem and its variables."""
    solver = _ortools().Solver.CreateSolver(backend)
    if solver is None:
        raise PlanError(f"this OR-tools was built without {backend}; install the ortools wheel")
    solver.LoadModelFromProto(_message(problem, frozenset(problem.integer if integral else ())))
    return solver, solver.variables()


def _message(problem: Problem, whole: frozenset[int]) -> Any:
    """The problem as OR-tools reads it at once: calls for each coefficient take three times as
    long. whole: variables of whole numbers."""
    from ortools.linear_solver.linear_solver_pb2 import MPModelProto

    message = MPModelProto()
    variable, row = message.variable.add, message.constraint.add
    for k, (cost, most) in enumerate(zip(problem.costs, problem.uppers, strict=True)):
        given = {"upper_bound": most, "objective_coefficient": cost, "is_integer": k in whole}
        variable(lower_bound=0.0, **given)
    for _, terms, lower, upper in problem.rows:
        each = _summed(terms)
        bounds = {"lower_bound": lower, "upper_bound": upper}
        row(var_index=each.keys(), coefficient=each.values(), **bounds)
    return message


def _price(solver: Any, variables: list, problem: Problem) -> None:
    """Set the objective to what the variables cost."""
    objective = solver.Objective()
    objective.Clear()
    for variable, cost in zip(variables, problem.costs, strict=True):
        if cost:
            objective.SetCoefficient(variable, cost)
    objective.SetMinimization()


def _summed(terms: Sequence[tuple[int, float]]) -> dict[int, float]:
    """The coefficients by their variables, in order."""
    each = dict(terms)
    if len(each) == len(terms):
        return each
    total: dict[int, float] = {}
    for index, coefficient in terms:
        total[index] = total.get(index, 0.0) + coefficient
    return total


def _why(problem: Problem, backend: str, status: int, pywraplp: Any) -> str:
    if status != pywraplp.Solver.INFEASIBLE:
        return f"{backend} gave up with status {status} on {len(problem.names)} variables"
    empty = [name for name, terms, lower, _ in problem.rows if not terms and lower > 0]
    return (
        f"no placement satisfies {len(problem.rows)} constraints"
        + (f"; nothing can satisfy {empty[0]}" if empty else "")
        + "; drop a pin, or take other sizes of the axes"
    )


def _ortools() -> Any:
    try:
        from ortools.linear_solver import pywraplp
    except ImportError as error:
        raise PlanError(
            f"the sharding search needs ortools ({error}); pip install ortools"
        ) from None
    return pywraplp


Arc = tuple[Hashable, Hashable, int | None]  # from, to, capacity; None: never cut


def source_side(arcs: Sequence[Arc], source: Hashable, sink: Hashable) -> set[Hashable]:
    """Return the nodes on the source's side of a minimum cut, of several the largest side.

    Capacities are whole numbers. Where their sum takes more than 62 bits, all lose their last ones.
    """
    from ortools.graph.python.max_flow import SimpleMaxFlow

    total = sum(capacity or 0 for _, _, capacity in arcs)
    lost = max(0, total.bit_length() - 62)
    never = 1 + (total >> lost)
    numbers: dict[Hashable, int] = {}
    flow = SimpleMaxFlow()
    for tail, head, capacity in arcs:
        ends = (numbers.setdefault(node, len(numbers)) for node in (tail, head))
        flow.add_arc_with_capacity(*ends, never if capacity is None else capacity >> lost)
    status = flow.solve(numbers[source], numbers[sink])
    assert status == flow.OPTIMAL, status
    behind = set(flow.get_sink_side_min_cut())
    return {node for node, number in numbers.items() if number not in behind}
