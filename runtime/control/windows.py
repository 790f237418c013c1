"""Windows of some steps in which each rank is looked at: a trace, or the times of its actions."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..engine.executor import Marks

_WAITS = ("RECV", "SEND", "STEP")


class Traced:
    """Marks that also name what comes in a trace of torch's profiler. They stand in the place of
    the marks `below` from `start` to `end`."""

    def __init__(self, below: Marks, folder: Path, rank: int, device: torch.device) -> None:
        self.below, self.folder, self.rank = below, folder, rank
        kinds = [torch.profiler.ProfilerActivity.CPU]
        kinds += [torch.profiler.ProfilerActivity.CUDA] if device.type == "cuda" else []
        self._profile = torch.profiler.profile(activities=kinds)
        self._range: Any = None
        self._profile.__enter__()

    def mark(self, kind: str, stage: int = 0, microbatch: int = -1) -> None:
        """The rank is about to do `kind`."""
        self.below.mark(kind, stage, microbatch)
        self._close()
        micro = f" micro-batch {microbatch}" if microbatch >= 0 else ""
        self._range = torch.profiler.record_function(f"{kind} stage {stage}{micro}")
        self._range.__enter__()

    def _close(self) -> None:
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None

    def end(self) -> Path:
        """Write the trace; return its file."""
        self._close()
        self._profile.__exit__(None, None, None)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"rank_{self.rank:05d}.json"
        self._profile.export_chrome_trace(str(path))
        return path


class Timed:
    """Marks that also time what comes, each action to its end on the device."""

    def __init__(self, below: Marks, wait: Callable[[], None]) -> None:
        """wait: returns when all that was given to the device is done."""
        self.below, self.wait = below, wait
        self.spent_s: dict[str, float] = defaultdict(float)
        self._kind, self._since_s = "", 0.0

    def mark(self, kind: str, stage: int = 0, microbatch: int = -1) -> None:
        """The rank is about to do `kind`."""
        self._close()
        self.below.mark(kind, stage, microbatch)
        self._kind, self._since_s = kind, time.perf_counter()

    def _close(self) -> None:
        if self._kind:
            self.wait()
            self.spent_s[self._kind] += time.perf_counter() - self._since_s
            self._kind = ""

    def end(self) -> dict[str, float]:
        """Return the seconds of each kind of action."""
        self._close()
        return dict(self.spent_s)


@dataclass(frozen=True)
class RankTimes:
    """A rank's times a step, in ms. work_ms: of actions that wait for no other rank; wait_ms: of
    messages, and of the end of the step, where all meet."""

    rank: int
    host: str
    work_ms: float
    wait_ms: float


def rank_times(rank: int, host: str, spent_s: dict[str, float], steps: int) -> RankTimes:
    """Return a rank's times a step of those of a window."""
    wait = sum(s for kind, s in spent_s.items() if kind.startswith(_WAITS))
    work = sum(spent_s.values()) - wait
    return RankTimes(rank, host, 1e3 * work / steps, 1e3 * wait / steps)


def straggler_lines(found: list[RankTimes]) -> list[str]:
    """Return what to say of the ranks: the one with the most work, which the others wait for, first
    where it stands out, then a row each."""
    slowest = max(found, key=lambda times: times.work_ms)
    usual = statistics.median(times.work_ms for times in found)
    waits = [t.wait_ms for t in found if t is not slowest] or [0.0]
    over = slowest.work_ms / usual - 1 if usual else 0.0
    head = f"no straggler: rank {slowest.rank} works most, {over:.1%} above the median"
    if over > 0.05 and len(found) > 1:
        head = _straggler(slowest, usual, statistics.mean(waits))
    rows = [
        f"  rank {t.rank:5d}  {t.host:20s}  work {t.work_ms:9.1f} ms  waits {t.wait_ms:9.1f} ms"
        for t in sorted(found, key=lambda times: -times.work_ms)
    ]
    return [head, *rows]


def _straggler(slowest: RankTimes, usual_ms: float, wait_ms: float) -> str:
    return (
        f"rank {slowest.rank} on {slowest.host} is the straggler: {slowest.work_ms:.1f} ms of "
        f"work a step where the median is {usual_ms:.1f}; the others wait {wait_ms:.1f} ms a step"
    )
