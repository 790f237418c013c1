"""Cuts by descent on the longest path, and the numbers that it is quick by."""

import random
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from machines import machine

import meshwright
from meshwright.planner.budget import BUDGET
from meshwright.planner.pipeline.computing import computing_of
from meshwright.planner.pipeline.schedules import (
    GENERATORS,
    SPLIT,
    chunks_of,
    listed,
    make_schedule,
)
from meshwright.planner.search.begins import begun_anew
from meshwright.planner.search.candidate_costs import CandidateCosts
from meshwright.planner.search.candidates import Candidate
from meshwright.planner.search.descent import Length, descend, neighbours, product
from meshwright.planner.search.fitting import descended, fastest_of, fit, step_of
from meshwright.planner.search.pins import Pins
from meshwright.planner.search.problem import Problem
from meshwright.planner.search.search import search
from meshwright.planner.simulate.simulator import simulate
from meshwright.planner.simulate.stage_memory import memory_of_units, moments, walk

MEMORY = 2**34
CHUNKED = [name for name in GENERATORS if name not in ("1f1b", "gpipe")]


@pytest.fixture(scope="module")
def costs() -> CandidateCosts:
    model = meshwright.trace("tiny", dtype="bf16")
    return CandidateCosts(Problem(model, machine(2, MEMORY, 1e11, 1e9, 3.0), 64, 8, Pins()))


def _candidate(name: str) -> Candidate:
    return Candidate(2, 1, 1, 1, 8, 0, "chosen", name, chunks_of(name, None))


@pytest.mark.parametrize("name", GENERATORS)
def test_the_best_neighbour_is_that_of_the_shortest_longest_path(name: str) -> None:
    """It is the same as where the path of every one is followed."""
    model = meshwright.trace("tiny", dtype="bf16")
    costs = CandidateCosts(Problem(model, machine(4, MEMORY, 1e11, 1e9, 3.0), 64, 16, Pins()))
    c = replace(_candidate(name), pp=4, micro_batch=1, num_microbatches=16)
    units = costs.units_of(c)
    count = len(units.options)
    waits = costs.memo.schedules.waits(c.listing._replace(num_microbatches=8))
    length = Length(units, c, (0,) * count, waits, more=8)
    starts = tuple(range(c.num_stages))
    for _ in range(5):
        cuts = neighbours(starts, count)
        each = [length.shortest(cuts[k : k + 1])[1] for k in range(len(cuts))]
        fresh = Length(units, c, (0,) * count, waits, more=8)
        starts, us = fresh.shortest(cuts)
        assert us == pytest.approx(min(each), rel=1e-12)
        assert length.shortest(np.array([starts]))[1] == pytest.approx(us, rel=1e-12)
        assert len(fresh.passed) <= 0.5 * len(cuts)  # paths followed for it


@pytest.mark.parametrize("rows", [0, 1, 3, 700])
def test_a_product_in_blocks_is_the_product(rows: int) -> None:
    rng = np.random.default_rng(0)
    left, right = rng.random((rows, 96)), rng.random((96, 2001))
    found = product(left, right)
    assert found.shape == (rows, 2001) and np.allclose(found, left @ right, rtol=1e-12, atol=0)


def test_neighbours_are_cuts_without_empty_stages() -> None:
    found = [tuple(cuts) for cuts in neighbours((0, 2, 3, 7), 9).tolist()]
    assert (0, 1, 3, 7) in found and (0, 3, 4, 8) in found and (0, 2, 3, 7) not in found
    for starts in found:
        assert starts[0] == 0 and starts[-1] < 9
        assert all(a < b for a, b in zip(starts, starts[1:], strict=False))
    assert (0, 3, 3, 7) not in found


@pytest.mark.parametrize("name", CHUNKED)
def test_it_comes_near_the_best_of_all_cuts(costs: CandidateCosts, name: str) -> None:
    """Simulated without collectives, which it does not see; from the worst start."""
    c = _candidate(name)
    count = len(costs.units_of(c).options)
    picks = (0,) * count
    every = [(0, *cuts) for cuts in combinations(range(1, count), c.num_stages - 1)]
    us = {s: simulate(step_of(costs, c, s, picks)).step_us for s in every}
    first, best = max(us.values()), min(us.values())
    start = next(s for s in every if us[s] == first)
    assert us[descend(costs, c, start, picks)] <= best + 0.1 * (first - best)


@pytest.mark.parametrize("name", CHUNKED)
def test_descending_never_loses(costs: CandidateCosts, name: str) -> None:
    fitted = fit(costs, _candidate(name), MEMORY)
    assert fitted is not None
    other = fastest_of(descended(costs, fitted, MEMORY))
    assert other is not None
    assert other.timeline.step_us <= fitted.timeline.step_us and other.peak_bytes <= MEMORY


@pytest.mark.parametrize("name", CHUNKED)
def test_other_begins_lead_to_cuts_that_fit_each_once(costs: CandidateCosts, name: str) -> None:
    c = _candidate(name)
    found = begun_anew(costs, c, MEMORY, 12)
    steps = [fitted.timeline.step_us for fitted in found]
    assert steps and steps == sorted(set(steps))
    assert all(f.peak_bytes <= MEMORY and len(f.starts) == c.num_stages for f in found)
    assert [f.starts for f in begun_anew(costs, c, MEMORY, 12)] == [f.starts for f in found]
    assert len(found) <= len(begun_anew(costs, c, MEMORY, 40))
    assert begun_anew(costs, c, 1.0, 12) == ()


def test_a_large_gap_is_cut_from_other_begins() -> None:
    """Of four stages whose first cuts are 1.2% above the best."""
    model = meshwright.trace("llama-1b", dtype="bf16")
    cluster = machine(4, 2**36, 1e14, 1e11, 3.0)
    pins = Pins(pp=4, dp=1, tp=1, schedule="zb-h1", recompute="none", micro_batch=1)
    steps = []
    for begins in (0, 40):
        budget = replace(BUDGET, begins=begins, enough_moved=0.0, max_polished=0, price_shares=())
        problem = Problem(model, cluster, 1024, 8, pins, budget)
        steps.append(search(CandidateCosts(problem)).best.timeline.step_us)
    assert steps[1] < 0.99 * steps[0]


def test_cuts_are_moved_where_the_gap_is_above_what_is_enough() -> None:
    """Of four stages whose first cuts are not the best, and no descent."""
    model = meshwright.trace("llama-1b", dtype="bf16")
    cluster = machine(4, 2**36, 1e14, 1e11, 3.0)
    pins = Pins(pp=4, dp=1, tp=1, schedule="zb-h1", recompute="none", micro_batch=1)
    steps = []
    for enough in (-1.0, 1.0):
        budget = replace(BUDGET, begins=0, descents=0, enough_polished=enough, price_shares=())
        problem = Problem(model, cluster, 1024, 8, pins, budget)
        steps.append(search(CandidateCosts(problem)).best.timeline.step_us)
    assert steps[0] < steps[1]


@pytest.mark.parametrize("name", GENERATORS)
def test_a_walk_finds_the_peak(costs: CandidateCosts, name: str) -> None:
    rng = random.Random(name)
    c = _candidate(name)
    units = costs.units_of(c).options
    for actions in listed(name, c.pp, c.num_microbatches, c.chunks):
        stages = {
            stage: memory_of_units((rng.choice(m) for m in rng.sample(units, 3)), name in SPLIT)
            for stage in range(c.num_stages)
        }
        peak = max(moment.total_bytes for _, moment, _ in moments(actions, stages))
        assert walk(computing_of(actions), stages).total_bytes == pytest.approx(peak, rel=1e-12)


def test_what_is_listed_is_what_is_made() -> None:
    for name in GENERATORS:
        assert listed(name, 4, 8, chunks_of(name, None)) == make_schedule(name, 4, 8)
