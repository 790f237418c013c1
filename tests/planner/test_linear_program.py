"""The linear program of pipelines where its solver gives up."""

import pytest

from meshwright.planner.solver import LinearProgram, Problem


class _Giving:
    """A solver that ends with the given statuses, one a solve."""

    OPTIMAL, INFEASIBLE, ABNORMAL = 0, 2, 4

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)

    def Solve(self) -> int:
        return self.statuses.pop(0)


@pytest.mark.parametrize(("statuses", "found"), [((4, 2), None), ((4, 4), 0.0), ((2,), None)])
def test_a_solver_that_gives_up_goes_on_once(
    statuses: tuple[int, ...], found: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem()
    problem.at_least("row", [(problem.variable("x", 1.0), 1.0)], 0.5)
    program = LinearProgram(problem)
    assert program.solve() == pytest.approx(0.5)
    monkeypatch.setattr(program, "_solver", giving := _Giving(*statuses))
    assert program.solve() == found
    assert not giving.statuses
