"""The simulator's streams, and its makespan against a longest path that shares no code with it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import model, times, unit

from meshwright.planner.simulate.simulator import simulate
from meshwright.planner.simulate.step_model import StepModel, Unit

US = st.floats(0.1, 1e4)


@given(
    stages=st.lists(times(), min_size=12, max_size=12),
    p=st.integers(2, 4),
    m=st.integers(1, 9),
    slow=st.sampled_from([0.0, 0.05]),
)
@pytest.mark.parametrize(
    ("name", "chunks"),
    [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zb-h1", 1), ("zbv", 2)],
)
@settings(max_examples=40, deadline=None)
def test_any_stages_equal_the_longest_path(longest_path, name, chunks, stages, p, m, slow) -> None:
    """Sends are shorter than any action, so none waits for another on its link."""
    m = m if name != "interleaved" else p * (1 + m // 4)
    stages = stages[: p * chunks]
    if not name.startswith("zb"):
        stages = [(f, i + w) for f, i, w in stages]
    timeline = simulate(model(name, stages, m, slow, chunks))
    expected = longest_path(name, stages, m, slow, chunks)
    assert max(timeline.finish_us) == pytest.approx(expected, rel=1e-9)


def one_stage(units: list[Unit], zero: int, m: int = 1, price: float = 0.38) -> StepModel:
    made = model("1f1b", [(0, 0)], m)
    return StepModel(
        (tuple(units),), (0,), made.schedule, zero, zero >= 2, m, (0,), (0,), (0,), (0,), 0.0, price
    )


def test_gathers_hide_behind_the_unit_before_at_a_price() -> None:
    units = [unit(10, 10, gather_us=4), unit(10, 10, gather_us=4)]
    free = simulate(one_stage(units, 3, price=0.0))
    # forward: 4 exposed, then both units; backward: 4 exposed for the last, the first is hidden
    assert free.step_us == pytest.approx(4 + 20 + 4 + 20)
    assert free.exposed_us[0] == pytest.approx(8)
    priced = simulate(one_stage(units, 3, price=0.5))
    assert priced.step_us == pytest.approx(free.step_us + 2 * 0.5 * 4)


def test_gathers_longer_than_compute_set_the_pace() -> None:
    units = [unit(1, 1, gather_us=10)] * 3
    timeline = simulate(one_stage(units, 3, price=0.0))
    assert timeline.step_us == pytest.approx(2 * (3 * 10 + 1))


def test_reductions_run_behind_backward_and_the_last_is_exposed() -> None:
    units = [unit(10, 10, reduce_us=4)] * 3
    assert simulate(one_stage(units, 0, price=0.0)).step_us == pytest.approx(60 + 4)
    assert simulate(one_stage(units, 0, m=2, price=0.0)).step_us == pytest.approx(120 + 4)
    assert simulate(one_stage(units, 2, m=2, price=0.0)).step_us == pytest.approx(120 + 4)


def test_a_split_backward_reduces_after_its_weight_gradients() -> None:
    """Of the last W of each rank, whose own 5 us stand before the exposed reduction."""
    stages = [(10.0, 10.0, 5.0)] * 2
    free = simulate(model("zb-h1", stages, 4))
    reduced = simulate(model("zb-h1", stages, 4, reduce_us=7.0))
    assert reduced.step_us == pytest.approx(free.step_us + 7.0)
