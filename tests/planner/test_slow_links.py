"""Reductions over slow links between nodes are in the bounds, so that the search avoids them."""

from dataclasses import replace

import pytest

import meshwright
from meshwright.ir.traced import Traced
from meshwright.planner.budget import EFFORTS
from meshwright.planner.hardware.cluster import Cluster
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.hardware.usable import usable_bytes
from meshwright.planner.search.candidate_bounds import CandidateBounds
from meshwright.planner.search.candidate_costs import CandidateCosts
from meshwright.planner.search.candidates import Candidate, candidates_of
from meshwright.planner.search.fitting import fit
from meshwright.planner.search.lp_bound import tightened, weighted_us
from meshwright.planner.search.pins import Pins
from meshwright.planner.search.problem import Problem
from meshwright.planner.search.search import search

SEQ, ROWS = 64, 32


@pytest.fixture(scope="module")
def model() -> Traced:
    return meshwright.trace("tiny-llama", dtype="bf16")


def slow(nodes: int, bytes_per_s: float) -> Cluster:
    found = parse_cluster(f"h100:8x{nodes}")
    inner, outer = found.levels
    device = replace(found.device, call_us=0.0)
    return replace(found, device=device, levels=(inner, replace(outer, bytes_per_s=bytes_per_s)))


def costs_of(model: Traced, pins: Pins) -> CandidateCosts:
    return CandidateCosts(Problem(model, slow(4, 1e7), SEQ, ROWS, pins, EFFORTS["fast"]))


def among(costs: CandidateCosts, **sizes: object) -> list[Candidate]:
    problem = costs.problem
    found = candidates_of(problem.traced, problem.cluster, ROWS, problem.pins, problem.budget)
    return [c for c in found if all(getattr(c, k) == v for k, v in sizes.items())]


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_sums_over_replicas_are_in_the_bound(model: Traced, zero: int) -> None:
    costs = costs_of(model, Pins())
    candidates = among(costs, rep=4, dp=8, tp=1, pp=1, zero=zero)
    assert candidates
    for c in candidates:
        units = costs.units_of(c)
        replicas = sum(options[0].replicas_us + options[0].reduce_us for options in units.options)
        bounds = CandidateBounds(costs)
        assert replicas > 1e3
        assert bounds.floor_us(c) >= replicas
        assert bounds.bound_us(c) >= replicas


def test_reductions_follow_the_compute_before_the_last_backward(model: Traced) -> None:
    costs = costs_of(model, Pins())
    found = [c for c in among(costs, pp=4, rep=1, dp=8, zero=1, schedule="1f1b") if c.tp == 1]
    assert found
    for c in found:
        units = costs.units_of(c)
        reduce = sum(options[0].reduce_us for options in units.options)
        before = units.least_until_last_us(c.num_microbatches)
        assert CandidateBounds(costs).floor_us(c) >= (before + reduce) / c.pp


def test_a_free_search_is_no_slower_than_a_pinned_one(model: Traced) -> None:
    free = search(costs_of(model, Pins())).best.timeline.step_us
    for pins in (Pins(tp=8), Pins(pp=4), Pins(pp=4, tp=8), Pins(rep=1)):
        pinned = search(costs_of(model, pins)).best.timeline.step_us
        assert free <= pinned * 1.05, pins


def test_either_outer_axis_is_a_candidate_of_its_own_over_slow_links(model: Traced) -> None:
    for bytes_per_s, outer in ((4e10, {"pp"}), (1e9, {"pp", "dp"})):
        for pinned in (None, "dp"):
            problem = Problem(model, slow(4, bytes_per_s), SEQ, ROWS, Pins(outer=pinned))
            found = candidates_of(model, problem.cluster, ROWS, problem.pins, problem.budget)
            both = {c.outer for c in found if c.pp > 1 and c.rep * c.dp > 1}
            assert both == ({pinned} if pinned else outer)
            assert problem.any_order == (bytes_per_s == 4e10 and pinned is None)
            assert len(found) == len(set(found))


@pytest.mark.parametrize("bytes_per_s", [1e7, 1e9, 4e10])
def test_bounds_hold_for_steps_that_reduce_over_slow_links(
    model: Traced, bytes_per_s: float
) -> None:
    budget = replace(EFFORTS["fast"], min_units=1)
    problem = Problem(model, slow(4, bytes_per_s), SEQ, ROWS, Pins(tp=1), budget)
    costs = CandidateCosts(problem)
    bounds, limit = CandidateBounds(costs), usable_bytes(problem.cluster)
    found = [c for c in among(costs, micro_batch=1) if c.pp > 1 and c.rep * c.dp > 1]
    assert {c.zero for c in found} == {0, 1, 2, 3} and {c.chunks for c in found} >= {1, 2}
    for c in found:
        fitted = fit(costs, c, limit)
        assert fitted is not None
        step_us = fitted.timeline.step_us * (1 + 1e-9)
        assert max(bounds.floor_us(c), bounds.bound_us(c, limit)) <= step_us, str(c)
        assert tightened(costs, c, limit).step_us <= step_us, str(c)
        assert weighted_us(costs, c, limit) <= step_us, str(c)
