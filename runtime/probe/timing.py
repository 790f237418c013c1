"""Times of work on a device, a median and what most readings lie between, and unseen memory."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

WARM, LEAST = 3, 5  # calls before the first reading; readings at least
MOST, AT_ONCE = 5000, 20  # readings at most, and those that a card is given at once


@dataclass(frozen=True)
class Reading:
    """A median of `count` readings, and what the middle eight tenths of them lie between."""

    median: float
    low: float
    high: float
    count: int

    def per(self, work: float) -> "Reading":
        """Return the rate of so much work, where this is its time."""
        return Reading(work / self.median, work / self.high, work / self.low, self.count)


def reading_of(values: list[float]) -> Reading:
    """Return the reading of some values, at least one."""
    ordered, last = sorted(values), len(values) - 1
    low, high = ordered[round(0.1 * last)], ordered[round(0.9 * last)]
    return Reading(statistics.median(ordered), low, high, len(ordered))


def seconds_of(
    work: Callable[[], object],
    device: torch.device,
    budget_s: float,
    before: Callable[[], object] = lambda: None,
) -> Reading:
    """Time a piece of work until the budget is spent, at least LEAST times.

    A card is given many at once, so that it draws the power, and has the clock, of a step.
    before: what is done, and not timed, just before each.
    """
    for _ in range(WARM):
        before()
        work()
    _wait(device)
    at_once = _timed_on_card if device.type == "cuda" else _timed
    until, found = time.perf_counter() + budget_s, list[float]()
    while len(found) < LEAST or (time.perf_counter() < until and len(found) < MOST):
        found += at_once(work, before)
    return reading_of(found)


def _timed(work: Callable[[], object], before: Callable[[], object]) -> list[float]:
    before()
    began = time.perf_counter()
    work()
    return [time.perf_counter() - began]


def _timed_on_card(work: Callable[[], object], before: Callable[[], object]) -> list[float]:
    pairs = []
    for _ in range(AT_ONCE):
        before()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        pairs.append((first, last))
    torch.cuda.synchronize()
    return [first.elapsed_time(last) / 1e3 for first, last in pairs]


def hold(side: int = 8192, times: int = 5) -> None:
    """Give this process's card matmuls of some 8 ms, for the host to queue other work meanwhile."""
    a = torch.empty(side, side, device="cuda", dtype=torch.bfloat16).normal_()
    for _ in range(times):
        torch.mm(a, a)


def unseen_bytes(device: torch.device) -> int:
    """Return bytes in use of a card that torch's allocator of this process does not hold; 0 on a
    CPU."""
    if device.type != "cuda":
        return 0
    free, whole = torch.cuda.mem_get_info(device)
    return whole - free - torch.cuda.memory_reserved(device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
