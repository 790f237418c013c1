"""Steps of a run that were profiled, beside the simulated step: one trace, which Perfetto opens.

`meshwright control profile RUN` writes a trace a rank, in which each action of the plan has a name.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..simulate.predict import Prediction
from ..simulate.timeline import STREAMS, events_of, named, slice_of

_ACTION = re.compile(r"([A-Z_]+) stage (\d+)(?: micro-batch (\d+))?")
_FIRST = "DATA"  # with which a step begins, before the plan's first action
_MEASURED = 10_000  # numbers of measured ranks' lanes, above those of predicted ones


@dataclass(frozen=True)
class Span:
    """An action of a rank, as the plan calls it, in us since the trace's own zero."""

    action: str
    start_us: float
    took_us: float


@dataclass(frozen=True)
class RankTrace:
    """Spans of one rank. host: whose clock its spans are of."""

    rank: int
    host: str
    spans: tuple[Span, ...]

    @property
    def begins_us(self) -> list[float]:
        """Return where each step's first action begins."""
        after = zip(self.spans, self.spans[1:], strict=False)
        return [b.start_us for a, b in after if a.action == _FIRST and b.action != _FIRST]


def read_traces(folder: Path) -> list[RankTrace]:
    """Return the traces of all ranks in a folder. Raises ValueError where there are none."""
    found = [_trace(path) for path in sorted(folder.glob("rank_*.json"))]
    if not any(trace.begins_us for trace in found):
        raise ValueError(
            f"--measured {folder}: {len(found)} traces of ranks, none with a step; give a folder "
            "that meshwright control profile wrote, such as RUN/profile/step_00000011"
        )
    return found


def _trace(path: Path) -> RankTrace:
    """Read a trace: spans on the GPU where it has them, else those of the host."""
    said = json.loads(path.read_text(encoding="utf-8"))
    rows = [row for row in said["traceEvents"] if "annotation" in row.get("cat", "")]
    gpu = [row for row in rows if row["cat"] == "gpu_user_annotation"]
    spans = [_span(row) for row in gpu or rows if _ACTION.fullmatch(row["name"])]
    spans.sort(key=lambda span: span.start_us)
    return RankTrace(int(path.stem[5:]), str(said.get("host_name", "")), tuple(spans))


def _span(row: dict[str, Any]) -> Span:
    match = _ACTION.fullmatch(row["name"])
    assert match is not None
    kind, stage, micro = match.groups()
    return Span(f"{stage}{kind}{micro}" if micro else kind, row["ts"], row["dur"])


def side_by_side(prediction: Prediction, traces: Sequence[RankTrace]) -> str:
    """Return the trace: each pp rank's predicted streams, once for every step that was measured,
    and below them what its ranks did. Ranks of several hosts begin together: clocks differ."""
    events = events_of(prediction)
    place = {event.action: event.rank for event in events}
    shared = len({trace.host for trace in traces}) == 1
    zero = min(trace.begins_us[0] for trace in traces if trace.begins_us)
    rows: list[dict[str, Any]] = []
    for rank in range(len(prediction.peaks)):
        rows += [*_lane(rank, 1000 * rank, f"pp rank {rank}, predicted")]
        rows += [named("thread_name", rank, k, name) for k, name in enumerate(STREAMS)]
    begins = next(trace.begins_us for trace in traces if trace.begins_us)
    for begin in begins:
        at = begin - (zero if shared else begins[0])
        rows += [{**slice_of(event), "ts": event.start_us + at} for event in events]
    for trace in filter(lambda trace: trace.begins_us, traces):
        own = zero if shared else trace.begins_us[0]
        stage = next((place[span.action] for span in trace.spans if span.action in place), 0)
        pid = _MEASURED + trace.rank
        rows += [*_lane(pid, 1000 * stage + 1 + trace.rank, f"rank {trace.rank}, measured")]
        rows += [_measured(span, pid, own) for span in trace.spans]
    return json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"})


def _lane(pid: int, order: int, name: str) -> list[dict[str, Any]]:
    sort = {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": order}}
    return [named("process_name", pid, 0, name), sort]


def _measured(span: Span, pid: int, zero_us: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.action,
        "cat": "measured",
        "pid": pid,
        "tid": 0,
        "ts": span.start_us - zero_us,
        "dur": span.took_us,
    }
