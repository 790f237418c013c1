"""A step is simulated only where its bound leaves something to find."""

import pytest
from machines import machine
from sampling import mostly_long

import meshwright
from meshwright.ir.traced import Traced
from meshwright.planner.pipeline.schedules import GENERATORS
from meshwright.planner.search.candidate_costs import CandidateCosts
from meshwright.planner.search.candidates import candidates
from meshwright.planner.search.fitting import Fitted, fastest_of, ways_to_fit
from meshwright.planner.search.pins import Pins
from meshwright.planner.search.problem import Problem

ROWS = 8


@pytest.fixture(scope="module")
def model() -> Traced:
    return meshwright.trace("tiny-llama", dtype="bf16")


def _ways(model: Traced, schedule: str, memory_bytes: int) -> list[tuple[Fitted, ...]]:
    cluster = machine(4, memory_bytes, 1e10, 1e9, 3.0)
    costs = CandidateCosts(Problem(model, cluster, 64, ROWS, Pins()))
    space = candidates(cluster, ROWS, Pins(schedule=schedule), len(model.segmented.instances))
    return [ways for c in space if (ways := ways_to_fit(costs, c, memory_bytes))]


@pytest.mark.parametrize("schedule", mostly_long(GENERATORS, "1f1b", "zbv"))
@pytest.mark.parametrize("memory_bytes", [34 * 10**6, 2**30])
def test_no_bound_is_above_its_step(model: Traced, schedule: str, memory_bytes: int) -> None:
    found = [way for ways in _ways(model, schedule, memory_bytes) for way in ways]
    assert len(found) > 10
    shares = [way.least_us / way.timeline.step_us for way in found]
    assert 0.9 < max(shares) <= 1


def test_the_fastest_is_that_of_all_simulated(model: Traced) -> None:
    several = [ways for ways in _ways(model, "1f1b", 2**30) if len(ways) > 1]
    assert several
    for ways in several:
        fastest = fastest_of(ways)
        assert fastest == min(ways, key=lambda f: (f.timeline.step_us, f.starts, f.picks))
    assert fastest_of(()) is None


def test_what_is_surely_slower_is_not_simulated(model: Traced) -> None:
    way = next(ways for ways in _ways(model, "1f1b", 2**30))[0]
    assert not way.beats(0.5 * way.least_us) and way.exceeds(0.5 * way.least_us)
    assert "timeline" not in vars(way)
    assert way.beats(2 * way.timeline.step_us) and not way.exceeds(2 * way.timeline.step_us)
