"""Goodput: what became of a run's wall time, by hand."""

import json
from pathlib import Path

import pytest

from meshwright.runtime.training.goodput import goodput, lines
from meshwright.runtime.training.past_run import PastRun


def past(tmp_path: Path, starts: list[dict], rows: list[dict]) -> PastRun:
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return PastRun(tmp_path, {"starts": starts})


def row(step: int, ms: float, elapsed_s: float) -> dict:
    return {"step": step, "step_ms": ms, "elapsed_s": elapsed_s}


def test_a_run_that_was_killed_once(tmp_path: Path) -> None:
    """Steps of 1 s. The first start lived 10 s: a first step of 3 s, 5 more, of which 2 were lost,
    and 2 s of data and checkpoints. 30 s later the second did steps 4 to 7 in 4 s, and 1 s beside.
    """
    starts = [
        {"time": "2026-11-24T10:00:00+00:00", "step": 0, "done": 6, "lived_s": 10.0},
        {"time": "2026-11-24T10:00:40+00:00", "step": 4},
    ]
    rows = [row(0, 3000.0, 3.0), *(row(n, 1000.0, 3.0 + n) for n in (1, 2, 3))]
    rows += [row(4 + n, 1000.0, 2.0 + n) for n in range(4)]
    found = goodput(past(tmp_path, starts, rows))
    assert found is not None
    assert found.wall_s == 45.0 and found.steps_s == 8.0 and found.slow_s == 2.0
    assert found.lost_s == 2.0 and found.away_s == 30.0 and found.start_s == pytest.approx(3.0)
    assert found.share == pytest.approx(8 / 45)
    parts = found.steps_s + found.slow_s + found.lost_s + found.start_s + found.away_s
    assert parts == pytest.approx(found.wall_s)
    assert lines(found)[0] == "goodput 17.8% of 45 s in 2 starts"


def test_short_steps_among_many_long_ones_count_as_what_they_took(tmp_path: Path) -> None:
    """The median of 10, 10 and 1 s is above their mean: no more became kept steps than passed."""
    starts = [{"time": "2026-11-24T10:00:00+00:00", "step": 0}]
    took = (10.0, 10.0, 1.0)
    rows = [row(n, 1e3 * seconds, sum(took[: n + 1])) for n, seconds in enumerate(took)]
    found = goodput(past(tmp_path, starts, rows))
    assert found is not None and found.steps_s == pytest.approx(21.0)
    assert found.share == pytest.approx(1.0) and found.slow_s == 0.0
    assert lines(found)[0] == "goodput 100.0% of 21 s in 1 start"


def test_a_run_without_a_step_has_none(tmp_path: Path) -> None:
    assert goodput(past(tmp_path, [], [])) is None
