"""Bounds of models whose first layers are frozen: no gradient goes to them, no backward runs."""

from functools import cache

import pytest
from machines import machine
from sampling import mostly_long

import meshwright
from meshwright.ir.traced import Traced
from meshwright.planner.search.candidate_bounds import CandidateBounds
from meshwright.planner.search.candidate_costs import CandidateCosts
from meshwright.planner.search.candidates import Candidate, candidates
from meshwright.planner.search.fitting import Fitted, fit
from meshwright.planner.search.lp_bound import tightened
from meshwright.planner.search.pins import Pins
from meshwright.planner.search.problem import Problem

FIRST = ("embed.*", "layers.0.*")
FROZEN = {
    "one layer": FIRST,
    "all but the head": ("embed.*", "layers.*"),
    "a layer and a half": (*FIRST, "layers.1.attention*"),
}
# Of a link in bytes per second, of a launch in us: where compute, sends or latency count.
MACHINES = {"fast links": (1e9, 3.0), "slow links": (1e7, 3.0), "no launches": (1e8, 0.0)}
LOOSE = 1e15


@cache
def _model(frozen: str) -> Traced:
    return meshwright.trace("tiny-llama", dtype="bf16", freeze=",".join(FROZEN[frozen]))


def _costs(frozen: str, links: str) -> CandidateCosts:
    cluster = machine(4, 2**30, 1e11, *MACHINES[links])
    return CandidateCosts(Problem(_model(frozen), cluster, 64, 8, Pins()))


def _space(costs: CandidateCosts, pp: int) -> list[Candidate]:
    count = len(costs.problem.traced.segmented.instances)
    return list(candidates(costs.problem.cluster, 8, Pins(pp=pp), count))


def _check(costs: CandidateCosts, c: Candidate, limit_bytes: float) -> Fitted | None:
    """No bound is above the simulated step of the best cuts found; return these."""
    bounds, fitted = CandidateBounds(costs), fit(costs, c, limit_bytes)
    if fitted is None:
        return None
    most = fitted.timeline.step_us * (1 + 1e-9)
    assert bounds.floor_us(c) <= most, f"floor of {c}"
    assert bounds.bound_us(c, limit_bytes) <= most, f"bound of {c}"
    assert tightened(costs, c, limit_bytes).step_us <= most, f"LP bound of {c}"
    return fitted


@pytest.mark.parametrize("links", mostly_long(tuple(MACHINES), "slow links"))
@pytest.mark.parametrize("frozen", mostly_long(tuple(FROZEN), "one layer"))
@pytest.mark.parametrize("pp", mostly_long((1, 2, 4), 2))
def test_no_bound_is_above_a_simulated_step(pp: int, frozen: str, links: str) -> None:
    costs = _costs(frozen, links)
    found = [_check(costs, c, LOOSE) for c in _space(costs, pp)]
    assert found and None not in found


@pytest.mark.parametrize("share", mostly_long((0.9, 0.75), 0.9))
def test_nor_where_memory_is_short(share: float) -> None:
    costs, tight = _costs("one layer", "no launches"), 0
    for c in _space(costs, 2)[::3]:
        loose = fit(costs, c, LOOSE)
        assert loose is not None
        tight += _check(costs, c, share * loose.peak_bytes) is not None
    assert tight


def test_a_stage_that_trains_nothing_waits_for_no_gradient() -> None:
    """The LP leaves out every transfer back that some cuts do not make, and no other wait."""
    costs = _costs("one layer", "slow links")
    (c,) = (c for c in _space(costs, 4) if (c.schedule, c.micro_batch) == ("1f1b", 2))
    assert costs.units_of(c).frozen == 3  # the embedding and both halves of a layer
    assert costs.units_of(c).most_silent(4) == 3 and costs.units_of(c).most_silent(2) == 1
    schedules = costs.memo.schedules
    free, all_sent = schedules.waits(c.listing, 3), schedules.waits(c.listing)
    assert free.nodes != () and sorted(free.nodes) == sorted(all_sent.nodes)
    forward = sum(kind == "F" and stage > 0 for stage, kind in free.nodes)
    assert sum(source >= 0 for source in free.source) == forward
    assert sum(source >= 0 for source in all_sent.source) == 2 * forward
