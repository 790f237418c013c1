"""What a search does where its gap is wide: bounds of more effort come before further candidates,
and plans near the best are fitted with placements that are not explored."""

from dataclasses import replace
from typing import Any

import pytest
from machines import machine

import meshwright
from meshwright.ir.traced import Traced
from meshwright.planner.budget import BUDGET, EFFORTS, SearchBudget
from meshwright.planner.hardware.usable import usable_bytes
from meshwright.planner.search.candidate_costs import CandidateCosts
from meshwright.planner.search.incumbent import Incumbent, Loser
from meshwright.planner.search.pins import Pins
from meshwright.planner.search.problem import Problem
from meshwright.planner.search.search import Found, search

SEQ, ROWS = 64, 8
PINS = Pins(tp=2, pp=2)
CLUSTER = machine(4, 2_000_000, 1e10, 2e9, 0.0)


@pytest.fixture(scope="module")
def model() -> Traced:
    return meshwright.trace("tiny-llama", dtype="bf16")


def found(model: Traced, budget: SearchBudget) -> Found:
    return search(CandidateCosts(Problem(model, CLUSTER, SEQ, ROWS, PINS, budget)))


def test_plans_near_the_best_are_fitted_with_other_placements(model: Traced) -> None:
    """Meshes are not explored with these, and the bound stays that of the default ones."""
    given = replace(BUDGET, price_shares=())
    default, wide = found(model, given), found(model, replace(given, wide=-0.9))
    assert wide.best.timeline.step_us < 0.995 * default.best.timeline.step_us
    assert wide.num_placements == default.num_placements == 1
    assert wide.bound_us <= default.bound_us
    own = wide.costs.sharding(wide.best.candidate.compute)
    assert not own.same_placements(default.costs.sharding(default.best.candidate.compute))
    none = found(model, replace(given, wide=-0.9, near_wide=-1.0))
    assert none.best.timeline.step_us == default.best.timeline.step_us


@pytest.mark.parametrize(
    "changed, left_share, looks",
    [({}, 1.0, False), ({"max_thorough": 0}, 1.0, True), ({}, 0.5, True)],
    ids=["bounded with more effort", "no more effort", "candidates that wait limit it"],
)
def test_a_gap_that_more_effort_closes_is_not_looked_at_closer(
    model: Traced, changed: dict[str, Any], left_share: float, looks: bool
) -> None:
    """left_share: a bound on candidates that wait, as a share of the best step."""
    budget = replace(EFFORTS["fast"], wide=0.25, **changed)
    whole = found(model, budget)
    one = Incumbent(whole.costs, usable_bytes(CLUSTER), lambda _: None, 0, whole.best)
    c, best_us = whole.best.candidate, whole.best.timeline.step_us
    passed = Loser(replace(c, zero=1), 0.97 * best_us)
    one.losers, one.bounds = [Loser(c, 0.5 * best_us, (whole.best,), True), passed], {c: 1.0}
    assert one.look_closer(left_share * best_us) == ([passed] if looks else [])
    assert one.worth == (budget.worth_where_wide if looks else budget.worth)
