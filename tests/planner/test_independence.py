"""A search has no past: neither other searches of a process nor their order show in its plan."""

import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import permutations
from pathlib import Path

import pytest
from families import traced
from machines import machine

from meshwright.ir.text.plan_text import format_plan
from meshwright.planner.budget import BUDGET, LpEffort
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.candidate_bounds import CandidateBounds
from meshwright.planner.search.candidate_costs import CandidateCosts
from meshwright.planner.search.candidates import candidates
from meshwright.planner.search.lp_bound import tightened
from meshwright.planner.search.pins import Pins, parse_pins
from meshwright.planner.search.problem import Problem
from meshwright.planner.search.search import search_plan

# Preset, pins.
QUESTIONS = (
    ("tiny-llama", ("pp=2",)),
    ("tiny-qwen2", ("pp=2", "schedule=zbv")),
    ("tiny-llama", ("pp=2", "zero=2")),
)
ALONE = (
    "import sys; sys.path[:0] = sys.argv[1:3]; from test_independence import text_of; "
    "sys.stdout.write(text_of(int(sys.argv[3])))"
)


def text_of(number: int) -> str:
    """Search the answer to a question; return the plan's text."""
    preset, pins = QUESTIONS[number]
    sizes = {"seq": 64, "global_batch": 8}
    given = {"pins": parse_pins(list(pins))}
    return format_plan(search_plan(traced(preset), parse_cluster("h200:4"), **sizes, **given)[0])


@cache
def alone(number: int) -> str:
    """Return the text that a process gives which searches nothing else."""
    here = Path(__file__).resolve().parent
    words = [sys.executable, "-c", ALONE, str(here), str(here.parent), str(number)]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=300).stdout


@pytest.mark.long
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_searches_of_one_process_give_what_separate_processes_give(order) -> None:
    assert [text_of(number) for number in order] == [alone(number) for number in order]


def _problems() -> list[Problem]:
    """Problems that differ in one thing each, all of which some result reads."""
    cluster = machine(4, 2**26, 1e11, 1e9, 3.0)
    base = Problem(traced("tiny-llama"), cluster, 64, 8, Pins())
    faster = replace(cluster, device=replace(cluster.device, hbm_bytes_per_s=1e12))
    return [
        base,
        replace(base, cluster=faster),
        replace(base, seq=128),
        replace(base, global_batch=16),
        replace(base, pins=Pins(reduce_dtype="bf16")),
        replace(base, pins=Pins(offload="on")),
        replace(base, pins=Pins(optimizer="muon")),
        replace(base, pins=Pins(price=1e-3)),
    ]


def _numbers(costs: CandidateCosts) -> list[tuple]:
    """Return what the search asks of some pipelines: bounds and LP bounds."""
    problem, bounds = costs.problem, CandidateBounds(costs)
    pins = replace(problem.pins, pp=2, tp=1, micro_batch=2)
    space = sorted(candidates(problem.cluster, problem.global_batch, pins, 6))
    limit = problem.cluster.device.memory_bytes
    return [
        (str(c), bounds.floor_us(c), bounds.bound_us(c, limit), tightened(costs, c, limit).step_us)
        for c in space[::5]
    ]


def test_problems_that_share_a_memo_share_no_more_than_what_they_agree_on() -> None:
    problems = _problems()
    expected = [_numbers(CandidateCosts(problem)) for problem in problems]
    assert len(set(map(str, expected))) > 5
    for order in (range(len(problems)), reversed(range(len(problems)))):
        memo = CandidateCosts(problems[0]).memo
        for k in order:
            assert _numbers(CandidateCosts(problems[k], memo)) == expected[k], problems[k].pins


def test_a_bound_is_the_same_whatever_was_enough_before() -> None:
    problem = _problems()[0]
    pins = Pins(pp=4, micro_batch=1, schedule="1f1b", zero=0)
    (c,) = candidates(problem.cluster, problem.global_batch, pins, 6)
    whole = tightened(CandidateCosts(problem), c, None).step_us
    asked = (whole / 2, 0.999 * whole, 2 * whole)
    expected = {us: tightened(CandidateCosts(problem), c, None, us).step_us for us in asked}
    for order in permutations(asked):
        costs = CandidateCosts(problem)
        assert {us: tightened(costs, c, None, us).step_us for us in order} == expected


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_a_bound_by_units_is_the_same_whatever_was_enough_before(schedule: str) -> None:
    """An exact one that is known is more than a coarse one, which a search alone would make."""
    problem = _problems()[0]
    pins = Pins(pp=4, micro_batch=1, schedule=schedule, zero=0)
    (c,) = candidates(problem.cluster, problem.global_batch, pins, 6)
    whole = CandidateBounds(CandidateCosts(problem)).bound_us(c)
    asked = (whole / 2, 0.99 * whole, 0.999 * whole, 2 * whole)

    def bounds(order: tuple[float, ...]) -> dict[float, float]:
        costs = CandidateCosts(problem)
        return {us: CandidateBounds(costs).bound_us(c, None, us) for us in order}

    expected = {us: bounds((us,))[us] for us in asked}
    for order in permutations(asked):
        assert bounds(order) == expected


def test_a_thorough_bound_begins_with_the_quick_bound_of_its_own_budget() -> None:
    problem = _problems()[0]
    pins = Pins(pp=4, micro_batch=1, schedule="1f1b", zero=0)
    (c,) = candidates(problem.cluster, problem.global_batch, pins, 6)
    other = replace(problem, budget=replace(BUDGET, quick=LpEffort(1, 0.5)))
    expected = tightened(CandidateCosts(other), c, None, effort=BUDGET.thorough)
    shared = CandidateCosts(problem)
    assert tightened(shared, c, None, effort=BUDGET.thorough).paths != expected.paths
    again = CandidateCosts(other, shared.memo)
    assert tightened(again, c, None, effort=BUDGET.thorough) == expected
