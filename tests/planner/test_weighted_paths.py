"""The bound by weighted paths against the linear program that it is a dual solution of."""

import random
from dataclasses import replace

import pytest

from meshwright.planner.bounds.lp import Kind, Pipeline, bound_pipeline
from meshwright.planner.bounds.weighted_paths import paths_of_equal_stages, weighted_bound
from meshwright.planner.budget import BUDGET
from meshwright.planner.pipeline.closings import LAST
from meshwright.planner.pipeline.critical_path import waits_of
from meshwright.planner.pipeline.peak_moments import peak_moments
from meshwright.planner.pipeline.schedules import GENERATORS, chunks_of, make_schedule, stage_ranks

P, M = 4, 8


def _of(pipeline: Pipeline):
    given = pipeline.schedule, pipeline.waits, pipeline.stage_ranks
    return paths_of_equal_stages(*given, BUDGET.quick, BUDGET.lp_step)


def _kind(rng: random.Random, count: int, actions: tuple[str, ...], beside: set[str]) -> Kind:
    """A kind of two options, one of which keeps less and takes longer in its backward."""
    us = {a: rng.uniform(1, 5) for a in actions}
    us[LAST] = us["B"] * 1.1 if "B" in us else 0.0
    alone = {a: (us[a], us[a] * (1.0 if a == "F" else 1.3)) for a in actions}
    slower = {a: tuple(x + rng.uniform(0, 1) for x in alone[a]) for a in beside}
    traffic, tail, closing = (rng.uniform(0, 3) for _ in range(3))
    return Kind(
        count,
        alone,
        slower,
        traffic,
        tail,
        stored_bytes=1.0,
        kept=(2.0, 0.5),
        handed=(0.3, 0.3),
        closing_us=closing,
    )


def _pipeline(name: str, seed: int, limit: float | None = None) -> Pipeline:
    rng, chunks, split = random.Random(f"{name}/{seed}"), chunks_of(name, None), name[:2] == "zb"
    stages, schedule = P * chunks, make_schedule(name, P, M, chunks)
    actions = ("F", "I", "W") if split else ("F", "B", LAST)
    beside = {a for a in (("F",) if split else actions) if seed % 2}
    kinds = tuple(_kind(rng, n, actions, beside) for n in (1, 1, 3 * stages, 2 * stages))
    return Pipeline(
        kinds,
        schedule,
        waits_of(schedule),
        stage_ranks(name, P, chunks),
        {"F": 0.4, "B": 0.3, LAST: 0.2},
        tuple(rng.uniform(0, 2) for _ in range(stages - 1)),
        0.38,
        limit,
        (0.0,) * P,
        (0.0, 0.0),
        peak_moments(schedule, stages, most_at_last=True),
        reduces_late=seed < 2,
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", GENERATORS)
def test_it_is_no_more_than_the_linear_program(name: str, seed: int) -> None:
    for limit in (None, 200.0):
        pipeline = _pipeline(name, seed, limit)
        whole = bound_pipeline(pipeline, effort=BUDGET.thorough).step_us
        assert 0.0 < weighted_bound(pipeline, _of(pipeline)) <= whole * (1 + 1e-9)


@pytest.mark.parametrize("name", GENERATORS)
def test_it_is_all_of_it_where_units_are_equal(name: str) -> None:
    """Of these the weights are the dual values themselves, but for one unit that each stage has."""
    pipeline = _pipeline(name, 0)
    us = {a: (2.0 if a in ("B", LAST) else 1.0,) for a in pipeline.kinds[0].alone}
    kind = Kind(1, us, {}, 0.0, 0.0, 1.0, (1.0,), (0.0,))
    others = replace(kind, count=4 * pipeline.num_stages - 2)
    silent = (0.0,) * (pipeline.num_stages - 1)
    equal = replace(pipeline, kinds=(kind, kind, others), send_us=silent)
    found, whole = weighted_bound(equal, _of(equal)), bound_pipeline(equal).step_us
    assert (1 - 1e-3) * whole <= found <= whole * (1 + 1e-9)


@pytest.mark.parametrize("name", GENERATORS)
def test_the_weights_are_a_mean(name: str) -> None:
    mean = _of(_pipeline(name, 0))
    assert sum(mean.ends.values()) == pytest.approx(1.0)
    assert mean.paths and all(share > 0 for share in mean.nodes.values())
