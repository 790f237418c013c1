"""The linear program of pipelines where its solver gives up."""

from typing import Any

import pytest

from meshwright.planner.solver import LinearProgram, Problem


class _Giving:
    """A solver that ends its first solves with the given statuses, and goes on as another."""

    OPTIMAL, INFEASIBLE, ABNORMAL = 0, 2, 4

    def __init__(self, solver: Any, *statuses: int) -> None:
        self.solver, self.statuses = solver, list(statuses)

    def Solve(self, *given: object) -> int:
        return self.statuses.pop(0) if self.statuses else self.solver.Solve(*given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.solver, name)


@pytest.mark.parametrize(
    ("statuses", "found"),
    [((4, 2), None), ((4, 4, 4), 0.0), ((4, 4, 2), None), ((2,), None), ((4, 4), 0.5)],
)
def test_a_solver_that_gives_up_goes_on_and_then_begins_anew(
    statuses: tuple[int, ...], found: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem()
    problem.at_least("row", [(problem.variable("x", 1.0), 1.0)], 0.5)
    program = LinearProgram(problem)
    assert program.solve() == pytest.approx(0.5)
    monkeypatch.setattr(program, "_solver", giving := _Giving(program._solver, *statuses))
    assert program.solve() == (found if found is None else pytest.approx(found))
    assert not giving.statuses
