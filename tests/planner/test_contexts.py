"""Ranks that cut the sequence though no rank would be idle: where they are candidates, and what
they bring."""

from dataclasses import replace

import pytest
from machines import machine

import meshwright
from meshwright.ir.mesh import compute_mesh
from meshwright.ir.traced import Traced
from meshwright.planner.budget import BUDGET, EFFORTS
from meshwright.planner.hardware.cluster import Cluster
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.remat.rules import row_bytes
from meshwright.planner.search.candidate_costs import CandidateCosts
from meshwright.planner.search.candidates import candidates
from meshwright.planner.search.fitting import fit
from meshwright.planner.search.other_placements import other_placements, placed_by
from meshwright.planner.search.pins import Pins, parse_pins
from meshwright.planner.search.problem import Problem
from meshwright.planner.search.search import search
from meshwright.planner.sharding.sequence_orders import ORDERS

SEQ, ROWS, AMPLE = 1024, 8, 1e15
FREE = Pins()


@pytest.fixture(scope="module")
def model() -> Traced:
    return meshwright.trace("tiny-llama", dtype="bf16")


def costs_of(model: Traced, cluster: Cluster, pins: Pins = FREE) -> CandidateCosts:
    return CandidateCosts(Problem(model, cluster, SEQ, ROWS, pins))


def tight(model: Traced, share: float) -> Cluster:
    """Four devices of which one row takes a share of the memory."""
    memory = row_bytes(model, SEQ, "cheap") / share
    return machine(4, memory, 1e11, 1e9, 3.0)


def test_rows_that_fill_a_device_may_be_cut(model: Traced) -> None:
    share = BUDGET.long_row
    assert costs_of(model, tight(model, 1.01 * share)).problem.split == BUDGET.max_split
    assert costs_of(model, tight(model, 0.99 * share)).problem.split == 1
    kept = row_bytes(model, SEQ, "none")
    assert kept > row_bytes(model, SEQ, "cheap") > row_bytes(model, SEQ, "all") >= 0
    assert row_bytes(model, 2 * SEQ, "none") > 1.9 * kept


def test_features_and_sequence_are_cut_by_ranks_of_one_node() -> None:
    cluster = parse_cluster("h200:8x2")
    found = list(candidates(cluster, 64, Pins(), 66, split=8))
    assert {(c.cp, c.tp) for c in found} >= {(2, 1), (8, 1), (4, 2), (2, 4), (1, 8)}
    assert all(c.cp * c.tp <= 8 for c in found)
    few = candidates(replace(cluster, nodes=8, devices_per_node=2), 64, Pins(), 66, split=8)
    assert max(c.cp * c.tp for c in few) == 2


def test_ranks_share_no_micro_batch_that_fewer_could_have_a_row_of_each() -> None:
    cluster, rows = parse_cluster("h200:8"), 48
    found = {(c.cp, c.micro_batch) for c in candidates(cluster, rows, Pins(), 66, split=8)}
    assert {(1, 2), (2, 1), (2, 3), (4, 3)} <= found
    assert not {(2, 2), (4, 2), (4, 6), (2, 6)} & found
    pinned = candidates(cluster, rows, Pins(cp=2), 66, split=8)
    assert {1, 2, 3, 4, 6} <= {c.micro_batch for c in pinned}


@pytest.mark.parametrize("pp", [1, 2])
def test_fewer_ranks_with_a_row_each_are_no_slower(model: Traced, pp: int) -> None:
    """The rule that leaves candidates out, by what a simulated step of both takes."""
    costs = costs_of(model, machine(4, AMPLE, 1e11, 1e9, 3.0))

    def step_us(cp: int, micro_batch: int) -> float:
        pins = Pins(pp=pp, cp=cp, tp=1, dp=4 // pp // cp, micro_batch=micro_batch, zero=0)
        space = candidates(costs.problem.cluster, ROWS, pins, 6)
        steps = (fit(costs, c, AMPLE) for c in space)
        return min(one.timeline.step_us for one in steps if one is not None)

    assert step_us(1, 1) <= step_us(2, 2)


PINS = ["cp=2", "cp=4", "cp=2 cp_order=contiguous", "cp=2 cp_order=mirrored", "shard_sequence=0"]


@pytest.mark.parametrize("pins", [*PINS, "tp=2 price=0", "cp=2 tp=2"])
def test_no_pin_is_faster_than_the_bound(model: Traced, pins: str) -> None:
    """In tight memory, where ranks that cut the sequence pay."""
    cluster = tight(model, 0.7)
    free = search(costs_of(model, cluster))
    pinned = search(costs_of(model, cluster, parse_pins(pins.split())))
    assert free.bound_us <= pinned.best.timeline.step_us * (1 + 1e-9)
    assert free.best.timeline.step_us <= pinned.best.timeline.step_us * (1 + 1e-9)


def test_a_row_that_fills_a_device_is_cut_by_the_plan(model: Traced) -> None:
    found = search(costs_of(model, tight(model, 0.7)))
    assert found.best.candidate.cp > 1
    whole = search(costs_of(model, tight(model, 0.7), Pins(cp=1)))
    assert found.best.timeline.step_us < whole.best.timeline.step_us


def test_other_placements_have_another_order_or_whole_sequences(model: Traced) -> None:
    """Each under pins that ask for the same again."""
    costs, mesh = costs_of(model, tight(model, 0.7)), compute_mesh(2, 2)
    known = {str(pins): other for pins, other in named(costs, mesh)}
    assert len(known) > 1
    for other in known.values():
        again = CandidateCosts(replace(other.problem, placing=None)).sharding(mesh)
        assert again.same_placements(other.sharding(mesh))
    assert {o.problem.pins.cp_order for o in known.values()} & set(ORDERS)
    fast = Problem(model, costs.problem.cluster, SEQ, ROWS, Pins(), EFFORTS["fast"])
    shares = EFFORTS["fast"].price_shares
    assert not list(other_placements(CandidateCosts(fast), mesh, 1, shares))


def test_placements_of_more_rows_are_those_of_larger_micro_batches(model: Traced) -> None:
    """Whatever the effort; none for micro-batches of one row, for which the default ones are."""
    mesh = compute_mesh(2, 2)
    for effort in ("fast", "normal"):
        problem = Problem(model, tight(model, 0.7), SEQ, ROWS, Pins(), EFFORTS[effort])
        (own,) = (
            other
            for what, other in placed_by(CandidateCosts(problem), mesh, 4, (0.0,))
            if what == "placements for 4 rows"
        )
        pinned = CandidateCosts(replace(problem, pins=Pins(micro_batch=4)))
        assert own.sharding(mesh).same_placements(pinned.sharding(mesh))
        assert own.problem.pins == problem.pins


def named(costs: CandidateCosts, mesh: object) -> list[tuple[Pins, CandidateCosts]]:
    shares = costs.problem.budget.price_shares
    return [(other.problem.pins, other) for _, other in other_placements(costs, mesh, 1, shares)]
