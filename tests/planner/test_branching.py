"""Choices that cost by pairs: the solver against every combination there is."""

import random
from itertools import combinations, product

import pytest

from meshwright.planner import solver
from meshwright.planner.solver import Problem

WAYS = range(3)


def _drawn(seed: int) -> tuple[Problem, float]:
    """Five choices of three ways, each pair of which costs something for each pair of ways; and
    the least cost there is."""
    draw = random.Random(seed)
    problem, choices = Problem(), range(5)
    own = [[draw.uniform(0, 2) for _ in WAYS] for _ in choices]
    both = {
        pair: {ways: draw.choice((0.0, 0.0, 1.0, 3.0)) for ways in product(WAYS, repeat=2)}
        for pair in combinations(choices, 2)
    }
    chosen = [[problem.variable(f"x{n}{k}", own[n][k], True) for k in WAYS] for n in choices]
    for n, found in enumerate(chosen):
        problem.equal(f"choose{n}", [(v, 1.0) for v in found], 1.0)
        problem.choices.append((found, n))
    for (a, b), costs in both.items():
        edges = {ways: problem.variable(f"e{a}{b}{ways}", cost) for ways, cost in costs.items()}
        for side, n in enumerate((a, b)):
            for k in WAYS:
                terms = [(edge, 1.0) for ways, edge in edges.items() if ways[side] == k]
                problem.equal(f"side{n}{k}", [*terms, (chosen[n][k], -1.0)], 0.0)
    least = min(
        sum(own[n][k] for n, k in enumerate(taken))
        + sum(costs[taken[a], taken[b]] for (a, b), costs in both.items())
        for taken in product(WAYS, repeat=len(choices))
    )
    return problem, least


@pytest.mark.parametrize("most", [0, 1, 3, 40], ids=lambda most: f"{most} branches")
def test_the_least_of_all_combinations_is_found(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another solver goes on after `most` relaxations."""
    monkeypatch.setattr(solver, "_MOST_BRANCHES", most)
    branched = 0
    for seed in range(40):
        problem, least = _drawn(seed)
        found = solver.solve(problem)
        branched += found.branched
        assert found.objective == pytest.approx(least, abs=1e-9)
        assert found.bound <= least + 1e-9
        again = solver.solve(problem)  # branching leaves nothing behind
        assert (again.values, again.bound) == (found.values, found.bound)
    assert branched >= 10


def test_few_relaxations_are_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the drawn problems needs the other solver."""
    monkeypatch.setattr(solver, "_by_branching_solver", None)
    for seed in range(40):
        solver.solve(_drawn(seed)[0])
