"""The options of a stage's units against brute force over every choice."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.planner.budget import BUDGET
from meshwright.planner.cost.piece_cost import Phase, PieceWork
from meshwright.planner.remat.options import OptionHulls, StageMemoryCost, UnitOptions
from meshwright.planner.remat.selection import (
    Leanest,
    _along_hulls,
    has_options,
    leanest_sizes,
    peak_bytes,
    select_options,
)
from meshwright.planner.simulate.step_model import Unit

SIZES = st.integers(0, 9).map(float)
HULLS = replace(BUDGET, exact_units=0, exact_choices=0, few_choices=0)  # no stage is exact
EXACT = replace(BUDGET, exact_choices=4**6)  # every stage drawn is solved exactly
AWAY = st.sampled_from([0.0, 0.0, 3.0, 8.0])


def unit(us: float, kept: float, forward: float, backward: float, away: float = 0.0) -> Unit:
    phases = (Phase(us, 0.0, 0.0, 0.0, forward), Phase(0.0, 0.0, 0.0, 0.0, backward))
    work = PieceWork(*phases, kept, 1.0, 1.0, 0.0, away_bytes=away)
    return Unit("", work, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 2.0)


@st.composite
def unit_options(draw: st.DrawFn) -> UnitOptions:
    """One to four options, each leaner and no faster than the one before; some of them offload."""
    count = draw(st.integers(1, 4))
    times = sorted(draw(st.lists(st.integers(1, 9), min_size=count, max_size=count)))
    kept = sorted(draw(st.lists(st.integers(0, 40), min_size=count, max_size=count, unique=True)))
    pairs = zip(times, reversed(kept), strict=True)
    away = [0.0, *(draw(AWAY) for _ in range(count - 1))]
    return tuple(
        unit(float(us), float(k), draw(SIZES), draw(SIZES), size)
        for (us, k), size in zip(pairs, away, strict=True)
    )


STAGES = st.lists(unit_options(), min_size=1, max_size=6)


def times_of(stage: list[UnitOptions]) -> list[list[float]]:
    return [[u.work.forward.us for u in options] for options in stage]


def best(stage: list[UnitOptions], held: int, limit: float) -> float | None:
    """The last unit offloads nothing."""
    choices = product(
        *(range(len(options)) for options in stage[:-1]),
        [k for k, u in enumerate(stage[-1]) if not u.work.away_bytes],
    )
    fitting = (picks for picks in choices if peak_bytes(stage, picks, held) <= limit)
    return min((total(stage, picks) for picks in fitting), default=None)


def total(stage: list[UnitOptions], picks: tuple[int, ...]) -> float:
    return sum(options[k].work.forward.us for options, k in zip(stage, picks, strict=True))


@given(STAGES, st.integers(1, 4), st.integers(0, 400))
@settings(max_examples=200, deadline=None)
def test_a_choice_is_the_fastest_that_fits(stage, held, limit) -> None:
    found = select_options(stage, times_of(stage), held, limit, budget=EXACT)
    expected = best(stage, held, limit)
    assert (found is None) == (expected is None)
    if found is not None:
        assert peak_bytes(stage, found, held) <= limit
        assert total(stage, found) == expected


@pytest.mark.parametrize("budget", [BUDGET, HULLS])
@given(STAGES, st.integers(1, 4), st.integers(0, 400))
@settings(max_examples=200, deadline=None)
def test_some_options_fit_where_a_choice_is_found(budget, stage, held, limit) -> None:
    asked = stage, times_of(stage), held, limit
    found = select_options(*asked, budget=budget)
    assert has_options(*asked, budget=budget) == (found is not None)
    assert found is None or peak_bytes(stage, found, held) <= limit


@given(STAGES, st.integers(1, 4), st.integers(0, 400))
@settings(max_examples=200, deadline=None)
def test_what_the_leanest_hold_tells_whether_any_options_fit(stage, held, limit) -> None:
    staying = [tuple(u for u in options if not u.work.away_bytes) for options in stage]
    holds = Leanest()
    for options in staying:
        holds.add(leanest_sizes(u.work.sizes for u in options))
    fastest = best(staying, held, limit)
    assert fastest is not None or not holds.fits(held, limit)
    assert fastest is None or holds.may_fit(held, limit)


@given(STAGES, st.integers(1, 4), st.integers(0, 400))
@settings(max_examples=200, deadline=None)
def test_no_choice_is_faster_than_what_freeing_takes(stage, held, limit) -> None:
    times = [[(us, 0.0) for us in times] for times in times_of(stage)]
    least = min(u.work.backward.peak_bytes for options in stage for u in options)
    bound = StageMemoryCost(OptionHulls.of(stage, times), lambda *_: 0.0, held, limit, least)
    more = [bound.add(index) for index in range(len(stage))][-1]
    expected = best(stage, held, limit)
    if expected is not None:
        assert sum(map(min, times_of(stage))) + more <= expected + 1e-9


@given(unit_options(), unit_options(), st.integers(1, 3), st.integers(1, 4), st.integers(0, 400))
@settings(max_examples=200, deadline=None)
def test_long_stages_fit_and_are_within_a_step_where_memory_only_falls(
    one, two, repeats, held, limit
) -> None:
    stage = [one, two] * repeats
    flat = [
        tuple(unit(u.work.forward.us, u.work.kept_bytes, 0.0, 0.0) for u in options)
        for options in stage
    ]
    found, expected = _along_hulls(flat, times_of(flat), held, limit), best(flat, held, limit)
    assert (found is None) == (expected is None)
    if found is not None:
        assert peak_bytes(flat, found, held) <= limit
        step = max(options[-1].work.forward.us - options[0].work.forward.us for options in flat)
        assert expected <= total(flat, found) <= expected + step
    found = _along_hulls(stage, times_of(stage), held, limit)
    assert found is None or peak_bytes(stage, found, held) <= limit
