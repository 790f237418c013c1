"""The simulator against closed forms and against a longest path that shares no code with it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.planner.schedules import in_flight, make_schedule
from meshwright.planner.simulator import simulate
from meshwright.planner.step import StepModel, Unit
from meshwright.planner.work import Phase, PieceWork

US = st.floats(0.1, 1e4)


def unit(f: float, b: float, **changes) -> Unit:
    work = PieceWork(Phase(f, 0, 0, 0, 0), Phase(b, 0, 0, 0, 0), 0, 0, 0, 0)
    return Unit(**(dict(name="u", work=work, accumulate_us=0, gather_us=0, reduce_us=0,
                        partial_us=0, bucket_bytes=0, owned_bytes=0) | changes))  # fmt: skip


def model(name: str, stages: list[tuple[float, float]], m: int, send_us: float = 0.0) -> StepModel:
    p = len(stages)
    zeros = (0.0,) * p
    return StepModel(
        tuple((unit(f, b),) for f, b in stages),
        make_schedule(name, p, m),
        0,
        False,
        m,
        (send_us,) * p,
        zeros,
        zeros,
        zeros,
        0.0,
    )


@given(f=US, b=US, p=st.integers(1, 6), extra=st.integers(0, 6))
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@settings(max_examples=60, deadline=None)
def test_equal_stages_idle_p_minus_1_slots(name, f, b, p, extra) -> None:
    """Bubble (p - 1)(f + b) for both (Narayanan et al. 2021, section 2.2)."""
    m = p + extra
    timeline = simulate(model(name, [(f, b)] * p, m))
    assert timeline.step_us == pytest.approx((m + p - 1) * (f + b), rel=1e-9)
    for stage in range(p):
        assert timeline.bubble_us(stage) == pytest.approx((p - 1) * (f + b), rel=1e-9, abs=1e-6)
        held = in_flight(make_schedule(name, p, m)[stage])
        assert held == (m if name == "gpipe" else p - stage)


@given(
    stages=st.lists(st.tuples(US, US), min_size=1, max_size=5),
    m=st.integers(1, 8),
    slow=st.sampled_from([0.0, 0.05]),
)
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@settings(max_examples=60, deadline=None)
def test_any_stages_equal_the_longest_path(longest_path, name, stages, m, slow) -> None:
    """Sends are shorter than any action, so none waits for another on its link."""
    timeline = simulate(model(name, stages, m, slow))
    assert max(timeline.finish_us) == pytest.approx(longest_path(name, stages, m, slow), rel=1e-9)


def one_stage(units: list[Unit], zero: int, m: int = 1) -> StepModel:
    made = model("1f1b", [(0, 0)], m)
    return StepModel(
        (tuple(units),), made.schedule, zero, zero >= 2, m, (0,), (0,), (0,), (0,), 0.0
    )


def test_gathers_hide_behind_the_unit_before_at_a_price() -> None:
    units = [unit(10, 10, gather_us=4), unit(10, 10, gather_us=4)]
    free = simulate(one_stage(units, 3), price=0.0)
    # forward: 4 exposed, then both units; backward: 4 exposed for the last, the first is hidden
    assert free.step_us == pytest.approx(4 + 20 + 4 + 20)
    assert free.exposed_us[0] == pytest.approx(8)
    priced = simulate(one_stage(units, 3), price=0.5)
    assert priced.step_us == pytest.approx(free.step_us + 2 * 0.5 * 4)


def test_gathers_longer_than_compute_set_the_pace() -> None:
    units = [unit(1, 1, gather_us=10)] * 3
    timeline = simulate(one_stage(units, 3), price=0.0)
    assert timeline.step_us == pytest.approx(2 * (3 * 10 + 1))


def test_reductions_run_behind_backward_and_the_last_is_exposed() -> None:
    units = [unit(10, 10, reduce_us=4)] * 3
    assert simulate(one_stage(units, 0), price=0.0).step_us == pytest.approx(60 + 4)
    assert simulate(one_stage(units, 0, m=2), price=0.0).step_us == pytest.approx(120 + 4)
    assert simulate(one_stage(units, 2, m=2), price=0.0).step_us == pytest.approx(120 + 4)
