"""Bounds of pipelines whose last reductions take as long as their compute: they slow what runs
beside them, and go on when it is done."""

import random
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from machines import machine
from sampling import mostly_long

from meshwright.ir.capture.export import trace
from meshwright.ir.schedule import COMPUTE
from meshwright.ir.traced import Traced
from meshwright.models import PRESETS
from meshwright.models.decoder import Decoder
from meshwright.planner.budget import BUDGET
from meshwright.planner.pipeline.closings import LAST
from meshwright.planner.pipeline.critical_path import waits_of
from meshwright.planner.pipeline.schedules import GENERATORS, chunks_of, make_schedule
from meshwright.planner.search.candidate_costs import CandidateCosts
from meshwright.planner.search.candidates import Candidate, candidates
from meshwright.planner.search.fitting import descended, fit, step_of
from meshwright.planner.search.lp_bound import tightened
from meshwright.planner.search.pins import Pins
from meshwright.planner.search.problem import Problem
from meshwright.planner.simulate.simulator import simulate

# Bytes a second of a link, from where reductions are next to nothing to where they are most of it.
LINKS = (1e9, 1e8, 3e7, 1e7)
LOOSE = 1e15


@cache
def _model() -> Traced:
    config = replace(PRESETS["tiny-llama"], layers=12)
    return trace(lambda: Decoder(config), "deep", "bf16", config.vocab)


def _costs(link: float) -> CandidateCosts:
    cluster = replace(machine(8, 2**40, 1e11, link, 1.0), overlap_price=0.38)
    return CandidateCosts(Problem(_model(), cluster, 64, 16, Pins()))


def _space(costs: CandidateCosts, schedule: str) -> list[Candidate]:
    count = len(costs.problem.traced.segmented.instances)
    pins = Pins(pp=4, tp=1, micro_batch=1, schedule=schedule)
    return list(candidates(costs.problem.cluster, 16, pins, count))


def _random_step_us(costs: CandidateCosts, c: Candidate, rng: random.Random) -> float:
    """Return the simulated step under cuts and options drawn at random."""
    count = len(costs.layout(c).instances)
    starts = (0, *sorted(rng.sample(range(1, count), c.num_stages - 1)))
    options = [len(x) for x in costs.units_of(c).options]
    picks = tuple(rng.randrange(x) for x in options)
    return simulate(step_of(costs, c, starts, picks), events=False).step_us


@pytest.mark.parametrize("link", mostly_long(LINKS, 1e7))
@pytest.mark.parametrize("schedule", GENERATORS)
def test_no_cuts_are_faster_than_their_bound_and_the_best_come_near(
    schedule: str, link: float
) -> None:
    rng, costs = random.Random(f"{schedule} {link}"), _costs(link)
    for c in _space(costs, schedule):
        fitted = fit(costs, c, LOOSE)
        assert fitted is not None
        best = min(found.timeline.step_us for found in descended(costs, fitted, LOOSE))
        least = min(best, *(_random_step_us(costs, c, rng) for _ in range(30)))
        for effort in (BUDGET.quick, BUDGET.thorough):
            bound = tightened(costs, c, None, effort=effort).step_us
            assert bound <= least * (1 + 1e-9), str(c)
        assert c.zero > 1 or bound >= 0.84 * best, str(c)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_stretch_is_what_follows_where_a_stage_closes(name: str) -> None:
    """Against the schedule by hand: after the last B of a stage, or from its last W on."""
    p, m, chunks = 4, 8, chunks_of(name, None)
    schedule = make_schedule(name, p, m, chunks)
    waits = waits_of(schedule)
    stretches = iter(waits.stretches)
    for rank, mine in enumerate(waits.ranks):
        order = [a for a in schedule[rank] if a.kind in COMPUTE]
        split = any(a.kind == "W" for a in order)
        ends = {a.stage: k for k, a in enumerate(order) if a.kind in ("B", "W")}
        starts = sorted((k if split else k + 1, stage) for stage, k in ends.items())
        for (start, stage), (stop, _) in pairwise([*starts, (len(order), 0)]):
            stretch = next(stretches)
            assert (stretch.rank, stretch.stage) == (rank, stage)
            assert stretch.actions == mine[start:stop]
            nodes = [waits.nodes[i] for i in mine[start:stop] if waits.nodes[i][1] != LAST]
            assert stretch.nodes == Counter(nodes)
    assert next(stretches, None) is None


@pytest.mark.parametrize("name", GENERATORS)
def test_reductions_that_start_from_an_action_are_those_not_complete_before_it(name: str) -> None:
    """By hand: of each stage of the rank, whether its last I, and its last W or B, come later."""
    schedule = make_schedule(name, 4, 8, chunks_of(name, None))
    waits = waits_of(schedule)
    for rank, mine in enumerate(waits.ranks):
        order = [a for a in schedule[rank] if a.kind in COMPUTE]
        last = {(a.stage, a.kind): k for k, a in enumerate(order)}
        for k, index in enumerate(mine):
            expected = []
            for stage in sorted({a.stage for a in order}):
                begun = last.get((stage, "I"), last.get((stage, "B"), -1)) < k
                done = last.get((stage, "W"), last.get((stage, "B"), -1)) < k
                expected += [] if done else [(stage, begun)]
            ending = waits.endings[index]
            assert ending.closes == tuple(expected)
            assert ending.rank == (rank if k == len(order) - 1 else -1)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_path_is_along_the_stretches_whose_actions_it_passes_in_turn(name: str) -> None:
    waits = waits_of(make_schedule(name, 4, 8, chunks_of(name, None)))
    for path in waits.plain:
        for number, stretch in enumerate(waits.stretches):
            if number in path.along:
                assert stretch.actions and Counter(path.nodes) >= Counter(stretch.nodes)
    for rank in range(len(waits.ranks)):
        whole = {k for k, one in enumerate(waits.stretches) if one.rank == rank and one.actions}
        to_its_end = [path for path in waits.plain if path.ending.rank == rank]
        assert any(whole <= set(path.along) for path in to_its_end)
