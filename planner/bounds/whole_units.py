"""How busy the busiest rank is at least, where ranks have several stages and units are whole.

A linear program splits units (lp.py): sixteen ranks of five layers and a sixteenth each are all as
busy as their mean. Whole units leave one of them with a unit more than that. Units are taken as of
two lengths, the short and the long ones, each as long as the shortest of them. A rank may have any
counts a and b of them within a limit of time, but as each of its stages is a run of units in their
order, a - b is within what runs of the model have. Ranks together take all units.

Which counts add up to all units is found by dynamic programming over ranks: by the number of long
units so far, the most short ones.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

# Share by which a limit may be below what could be proven, and by which sums may be rounded.
CLOSE, ROUNDED = 1e-3, 1e-9


@dataclass(frozen=True)
class _Rank:
    """What a rank has whatever it takes. us: of the first and last unit, where it has them. least,
    most: of short units less long ones. stages: that need a unit of their own."""

    us: float
    least: int
    most: int
    stages: int


def busiest_us(times: Sequence[float], stage_ranks: Sequence[int]) -> float:
    """Return a bound on the time of one micro-batch on the rank that takes longest, in us.

    times: of each unit at least, in order; of fewer than three, and where one takes no time, the
    bound is the mean. stage_ranks: of every stage its rank. Every stage has a unit, the first stage
    the first and the last the last.
    """
    low = sum(times) / (1 + max(stage_ranks))
    if len(times) < 3 or min(times) <= 0.0:
        return low
    limits = _Limits(times, stage_ranks)
    if limits.met(low * (1 + CLOSE)):
        return low
    step = low / 8
    while not limits.met(high := low + step):
        low = high
    while high - low > CLOSE * low:
        middle = (low + high) / 2
        low, high = (low, middle) if limits.met(middle) else (middle, high)
    return low


class _Limits:
    """Limits on the time of a rank, asked one after another."""

    def __init__(self, times: Sequence[float], stage_ranks: Sequence[int]) -> None:
        first, *inner, last = times
        least_long = _least_long(inner)
        long = [us >= least_long for us in inner]
        self.long = sum(long)
        self.short = len(inner) - self.long
        self.us_long = least_long
        self.us_short = min((us for us in inner if us < least_long), default=least_long)
        more = list(accumulate((-1 if is_long else 1 for is_long in long), initial=0))
        low, high, end = min(more), max(more), more[-1]
        every = {0: (first, low, high, 0), len(stage_ranks) - 1: (last, end - high, end - low, 0)}
        inside = 0.0, low - high, high - low, 1
        homes: dict[int, list[tuple[float, int, int, int]]] = {}
        for stage, rank in enumerate(stage_ranks):
            homes.setdefault(rank, []).append(every.get(stage, inside))
        self.ranks = Counter(
            _Rank(*(sum(one) for one in zip(*stages, strict=True))) for stages in homes.values()
        )

    def met(self, limit_us: float) -> bool:
        """Return whether ranks that take no longer may take all units."""
        found = np.full(self.long + 1, -np.inf)  # by long units taken, the most short ones
        found[0] = 0
        for rank, count in self.ranks.items():
            ways = self._ways(rank, limit_us * (1 + ROUNDED))
            for _ in range(count):
                before, found = found, np.full(self.long + 1, -np.inf)
                for long, short in ways:
                    later = found[long:]
                    np.maximum(later, before[: len(later)] + short, out=later)
        return bool(found[-1] >= self.short)

    def _ways(self, rank: _Rank, limit_us: float) -> list[tuple[int, int]]:
        """Return the counts of long units that a rank may take, each with the most short ones."""
        found = []
        for long in range(self.long + 1):
            left_us = limit_us - rank.us - long * self.us_long
            if left_us < 0:
                break
            most = min(self.short, long + rank.most, int(left_us / self.us_short))
            if most >= max(0, long + rank.least, rank.stages - long):
                found.append((long, most))
        return found


def _least_long(times: Sequence[float]) -> float:
    """Return from which time on a unit is a long one: where times, in order, differ most."""
    found = sorted(set(times))
    gaps = [after - before for before, after in zip(found, found[1:], strict=False)]
    return found[gaps.index(max(gaps)) + 1] if gaps else found[0]
