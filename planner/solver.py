"""The one door to OR-tools: named 0/1 problems, the linear relaxation first.

The relaxation of a placement problem is nearly always integral: then its value is the proven
optimum. Only when a variable comes out fractional does a branching solver run. One thread, no
time-dependent choice: the same problem gives the same answer.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from meshwright.ir.errors import InfeasibleError, PlanError

_INTEGRAL = 1e-6


@dataclass
class Problem:
    """Minimise costs @ x over 0 <= x <= 1 and rows lower <= coefficients @ x <= upper.

    integer: indices that must end at 0 or 1; the others follow them.
    """

    names: list[str] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    integer: list[int] = field(default_factory=list)
    rows: list[tuple[str, list[tuple[int, float]], float, float]] = field(default_factory=list)

    def variable(self, name: str, cost: float, integer: bool = False) -> int:
        self.names.append(name)
        self.costs.append(cost)
        if integer:
            self.integer.append(len(self.names) - 1)
        return len(self.names) - 1

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
    """Raises InfeasibleError naming the first family at fault, PlanError without OR-tools."""
    relaxed, bound = _run(problem, "GLOP", False)
    fractional = [k for k in problem.integer if abs(relaxed[k] - round(relaxed[k])) > _INTEGRAL]
    if not fractional:
        values = tuple(round(v) for v in relaxed)
        return Solution(values, _objective(problem, values), bound, False)
    values = tuple(round(v) for v in _run(problem, "SCIP", True)[0])
    return Solution(values, _objective(problem, values), bound, True)


def _objective(problem: Problem, values: tuple[int, ...]) -> float:
    return sum(cost * value for cost, value in zip(problem.costs, values, strict=True))


def _run(problem: Problem, backend: str, integral: bool) -> tuple[list[float], float]:
    pywraplp = _ortools()
    solver = pywraplp.Solver.CreateSolver(backend)
    if solver is None:
        raise PlanError(f"this OR-tools was built without {backend}; install the ortools wheel")
    whole = set(problem.integer) if integral else set()
    variables = [
        solver.IntVar(0, 1, "") if k in whole else solver.NumVar(0, 1, "")
        for k in range(len(problem.names))
    ]
    objective = solver.Objective()
    for variable, cost in zip(variables, problem.costs, strict=True):
        if cost:
            objective.SetCoefficient(variable, cost)
    objective.SetMinimization()
    for _, terms, lower, upper in problem.rows:
        row = solver.Constraint(lower, upper)
        for index, coefficient in _summed(terms):
            row.SetCoefficient(variables[index], coefficient)
    status = solver.Solve()
    if status != pywraplp.Solver.OPTIMAL:
        raise InfeasibleError(_why(problem, backend, status, pywraplp))
    return [v.solution_value() for v in variables], objective.Value()


def _summed(terms: list[tuple[int, float]]) -> Iterable[tuple[int, float]]:
    total: dict[int, float] = {}
    for index, coefficient in terms:
        total[index] = total.get(index, 0.0) + coefficient
    return total.items()


def _why(problem: Problem, backend: str, status: int, pywraplp: Any) -> str:
    if status != pywraplp.Solver.INFEASIBLE:
        return f"{backend} gave up with status {status} on {len(problem.names)} variables"
    empty = [name for name, terms, lower, _ in problem.rows if not terms and lower > 0]
    return (
        f"no placement satisfies {len(problem.rows)} constraints"
        + (f"; nothing can satisfy {empty[0]}" if empty else "")
        + "; drop a pin"
    )


def _ortools() -> Any:
    try:
        from ortools.linear_solver import pywraplp
    except ImportError as error:
        raise PlanError(
            f"the sharding search needs ortools ({error}); pip install ortools"
        ) from None
    return pywraplp
