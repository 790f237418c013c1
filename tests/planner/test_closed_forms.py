"""Bubbles and activations in flight against the formulas of the papers that the schedules are from.

A rank's work on a micro-batch is f, b (gradient of its input) and w (of its weights); its chunks
share it evenly. Bubble: makespan less a rank's busy time.
"""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from steps import model

from meshwright.planner.pipeline.schedules import in_flight, make_schedule
from meshwright.planner.simulate.simulator import Timeline, simulate

US = st.floats(0.1, 1e4)
P, M = st.integers(2, 6), st.integers(1, 4)


def run(name: str, p: int, m: int, f: float, b: float, w: float, chunks: int = 1) -> Timeline:
    split = name.startswith("zb")
    us = (f, b, w) if split else (f, b + w)
    stages = [tuple(t / chunks for t in us)] * (p * chunks)
    return simulate(model(name, stages, m, 0.0, chunks))


def bubbles(timeline: Timeline) -> list[float]:
    return [timeline.bubble_us(rank) for rank in range(len(timeline.busy_us))]


@pytest.mark.parametrize(
    ("name", "chunks", "bubble"),
    [("gpipe", 1, 9), ("1f1b", 1, 9), ("interleaved", 2, 4.5), ("zb-h1", 1, 3), ("zbv", 2, 1.5)],
)
def test_bubbles_at_equal_unit_times(name: str, chunks: int, bubble: float) -> None:
    assert bubbles(run(name, 4, 16, 1, 1, 1, chunks)) == pytest.approx([bubble] * 4, rel=1e-9)


@given(f=US, b=US, w=US, p=P, extra=st.integers(0, 6))
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@settings(max_examples=60, deadline=None)
def test_gpipe_and_1f1b_idle_p_minus_1_slots(name, f, b, w, p, extra) -> None:
    """(p - 1)(f + b + w) for both (Narayanan et al. 2021, section 2.2)."""
    m = p + extra
    timeline = run(name, p, m, f, b, w)
    assert timeline.step_us == pytest.approx((m + p - 1) * (f + b + w), rel=1e-9)
    expected = [(p - 1) * (f + b + w)] * p
    assert bubbles(timeline) == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(f=US, b=US, w=US, p=P, groups=M, chunks=st.integers(2, 4))
@settings(max_examples=60, deadline=None)
def test_interleaving_divides_the_bubble_by_the_chunks(f, b, w, p, groups, chunks) -> None:
    """(p - 1)(f + b + w) / v (the same, section 2.2)."""
    timeline = run("interleaved", p, groups * p, f, b, w, chunks)
    expected = [(p - 1) * (f + b + w) / chunks] * p
    assert bubbles(timeline) == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(f=US, b=US, w=US, p=P, extra=st.integers(0, 6))
@settings(max_examples=100, deadline=None)
def test_zb_h1_idles_p_minus_1_times_what_w_does_not_fill(f, b, w, p, extra) -> None:
    """(p - 1)(f + b - w) (Qi et al. 2023, section 2.3) where W is no longer than F or I is."""
    assume(w <= min(f, b))
    expected = [(p - 1) * (f + b - w)] * p
    timeline = run("zb-h1", p, 2 * p + extra, f, b, w)
    assert bubbles(timeline) == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(us=US, p=P, extra=st.integers(0, 6))
@settings(max_examples=60, deadline=None)
def test_zbv_idles_only_until_the_last_rank_starts(us, p, extra) -> None:
    """p - 1 chunks of f at f = b = w, from 2p micro-batches on (Qi et al. 2024, section 4.2)."""
    timeline = run("zbv", p, 2 * p + extra, us, us, us, 2)
    assert bubbles(timeline) == pytest.approx([(p - 1) * us / 2] * p, rel=1e-9, abs=1e-6)


@given(p=P, m=st.integers(1, 20), chunks=st.integers(2, 4))
@settings(max_examples=60, deadline=None)
def test_peak_in_flight(p, m, chunks) -> None:
    """Stages' micro-batches that a rank holds something of, from F to B or W."""

    def held(name: str, m: int, chunks: int | None = None) -> list[int]:
        return [in_flight(actions) for actions in make_schedule(name, p, m, chunks)]

    assert held("gpipe", m) == [m] * p
    assert held("1f1b", m) == [min(m, p - rank) for rank in range(p)]
    assert held("zb-h1", m) == [min(m, p)] * p
    full = 2 * p + m
    assert held("zbv", full) == [2 * p] * p
    groups = p * (1 + m // p)
    expected = [
        min(2 * (p - rank - 1) + (chunks - 1) * p + 1, groups * chunks) for rank in range(p)
    ]
    assert held("interleaved", groups, chunks) == expected
