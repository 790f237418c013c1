"""Learning-rate schedules at the points where they turn."""

import math

import pytest

from meshwright.runtime.training.lr_schedule import SCHEDULES, learning_rate

RUN = {"peak": 1e-3, "warmup": 10, "total": 110, "floor": 1e-4}


@pytest.mark.parametrize("schedule", [s for s in SCHEDULES if s != "none"])
def test_warm_up_rises_from_above_zero_to_the_peak(schedule: str) -> None:
    rates = [learning_rate(step, schedule=schedule, **RUN) for step in range(11)]
    assert rates[:10] == pytest.approx([1e-4 * (step + 1) for step in range(10)])
    assert rates[10] == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("schedule", "step", "rate"),
    [
        ("constant", 109, 1e-3),
        ("constant", 500, 1e-3),
        ("linear", 60, 5.5e-4),
        ("linear", 110, 1e-4),
        ("cosine", 60, 5.5e-4),
        ("cosine", 35, 1e-4 + 9e-4 * (1 + math.sqrt(0.5)) / 2),
        ("cosine", 110, 1e-4),
        ("cosine", 500, 1e-4),
        ("wsd", 99, 1e-3),  # a tenth of 110 steps: falls from step 99 on
        ("wsd", 110, 1e-4),
        ("inverse-sqrt", 40, 5e-4),  # four times the warm-up
        ("inverse-sqrt", 10 * 400, 1e-4),  # a twentieth of the peak is below the floor
        ("rex", 60, 1e-4 + 9e-4 * 2 / 3),
        ("rex", 110, 1e-4),
        ("none", 0, 1e-3),
        ("none", 500, 1e-3),
    ],
)
def test_after_warm_up_each_follows_its_formula(schedule: str, step: int, rate: float) -> None:
    assert learning_rate(step, schedule=schedule, **RUN) == pytest.approx(rate)


def test_wsd_falls_over_the_steps_asked_for() -> None:
    rates = [learning_rate(step, schedule="wsd", decay=20, **RUN) for step in (90, 100, 110)]
    assert rates == pytest.approx([1e-3, 5.5e-4, 1e-4])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_run_that_is_all_warm_up_divides_by_nothing(schedule: str) -> None:
    rate = learning_rate(4, schedule=schedule, peak=1.0, warmup=5, total=5)
    assert rate == pytest.approx(1.0)
    after = learning_rate(5, schedule=schedule, peak=1.0, warmup=5, total=5)
    assert after == (1.0 if schedule in ("constant", "inverse-sqrt", "none") else 0.0)


def test_inverse_sqrt_without_warm_up_starts_at_the_peak() -> None:
    rates = [learning_rate(s, schedule="inverse-sqrt", peak=1.0, warmup=0, total=9) for s in (0, 3)]
    assert rates == pytest.approx([1.0, 0.5])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"schedule": "cosin"}, r"'cosin'; choose from constant, linear, cosine, wsd,"),
        ({"warmup": 111}, r"warmup of 111 .* total of 110"),
        ({"warmup": 0, "total": 0}, r"warmup of 0 .* total of 0"),
        ({"warmup": -1}, r"warmup of -1"),
        ({"schedule": "wsd", "decay": 101}, r"decay of 101 .* at most 100"),
        ({"floor": 2e-3}, r"floor 0.002 and peak 0.001"),
        ({"peak": float("nan")}, r"peak nan"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(changed: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        learning_rate(0, **{"schedule": "linear", **RUN, **changed})
