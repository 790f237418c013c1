"""Goodput of a run: the share of wall time that became kept steps, and where the rest went."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from .past_run import PastRun


@dataclass(frozen=True)
class Goodput:
    """Seconds of a run from its first start to its last row.

    steps_s: of kept steps, each at the median of all, or at their mean where that is less. slow_s:
    what kept steps took above that; the first of a start, which compiles, is most of it. lost_s: of
    steps that were done again. start_s: from each start of training to its first step, and between
    steps: data, evaluations, checkpoints. away_s: between an end and the next start: queue,
    back-off, launch.
    """

    wall_s: float
    steps_s: float
    slow_s: float
    lost_s: float
    start_s: float
    away_s: float
    starts: int

    @property
    def share(self) -> float:
        """Return the share of wall time that became kept steps."""
        return self.steps_s / self.wall_s if self.wall_s else 0.0

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**asdict(self), "share": self.share}


def goodput(run: PastRun) -> Goodput | None:
    """Return the goodput of a run; None of one without a step."""
    rows = [row for row in run.rows if "step_ms" in row]
    if not rows:
        return None
    starts = run.said["starts"]
    began = [datetime.fromisoformat(start["time"]).timestamp() for start in starts]
    spans = [_span(rows, starts, n) for n in range(len(starts))]
    kept = sum(row["step_ms"] for row in rows) / 1e3
    # Where many steps are short, the median is above the mean.
    usual = min(statistics.median(row["step_ms"] for row in rows) / 1e3, kept / len(rows))
    wall = began[-1] + spans[-1] - began[0]
    live = sum(_lived(starts, spans, n) for n in range(len(starts)))
    lost = usual * sum(_lost_steps(starts, n) for n in range(len(starts) - 1))
    return Goodput(
        wall_s=wall,
        steps_s=usual * len(rows),
        slow_s=max(kept - usual * len(rows), 0.0),
        lost_s=lost,
        start_s=max(live - kept - lost, 0.0),
        away_s=max(wall - live, 0.0),
        starts=len(starts),
    )


def _span(rows: Sequence[Mapping[str, Any]], starts: Sequence[Mapping[str, Any]], n: int) -> float:
    """Return the seconds from a start to the last kept row that it wrote."""
    first = starts[n]["step"]
    end = starts[n + 1]["step"] if n + 1 < len(starts) else float("inf")
    own = [row["elapsed_s"] or 0.0 for row in rows if first <= row["step"] < end]
    return max(own, default=0.0)


def _lived(starts: Sequence[Mapping[str, Any]], spans: list[float], n: int) -> float:
    """Return the seconds that a start lived: up to the last row that it wrote, kept or not."""
    return max(float(starts[n].get("lived_s") or 0.0), spans[n])


def _lost_steps(starts: Sequence[Mapping[str, Any]], n: int) -> int:
    """Return how many steps of a start the next one did again."""
    return max(int(starts[n].get("done", starts[n + 1]["step"])) - starts[n + 1]["step"], 0)


def lines(found: Goodput) -> list[str]:
    """Return goodput in words."""
    parts = {
        "kept steps": found.steps_s,
        "slower steps, the first ones": found.slow_s,
        "lost steps": found.lost_s,
        "start, evaluations, checkpoints": found.start_s,
        "away: queue, back-off, launch": found.away_s,
    }
    starts = f"{found.starts} start{'s' * (found.starts != 1)}"
    head = f"goodput {found.share:.1%} of {found.wall_s:,.0f} s in {starts}"
    rows = (f"  {k:32s} {s:10,.1f} s  {s / found.wall_s:6.1%}" for k, s in parts.items())
    return [head, *rows]
