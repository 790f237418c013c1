"""The time that a run still takes."""

import pytest

from meshwright.runtime.metrics import pace


def test_the_time_left_leaves_out_the_first_step_and_starts_over_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(pace.time, "monotonic", lambda: now)
    run = pace.Pace(1000)
    said = []
    for at, step in ((160.0, 10), (161.0, 11), (170.0, 20), (171.0, 5), (172.0, 6)):
        now = at
        said.append(run.after(step))
    assert run.elapsed_s == 72.0
    assert said == [
        "1.1%",
        "1.2%  ETA 0:16:28",
        "2.1%  ETA 0:16:19",
        "0.6%",
        "0.7%  ETA 0:16:33",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00:00"), (65, "0:01:05"), (1e5, "27:46:40")]
)
def test_a_clock_counts_hours(seconds: float, text: str) -> None:
    assert pace.clock(seconds) == text
