"""How far the units ahead of a cut may be from the model's own shares of their kinds.

Where attention and FFN take turns, any first units have at most one more of either. A linear
program that splits units freely (lp.py) would give a stage one kind alone.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Mix:
    """weights: of a unit by its kind, which add up to 0 over all units. least, most: that they add
    up to over any of the first units."""

    weights: tuple[float, ...]
    least: float
    most: float


def mixes_of(kinds: Sequence[int], num_stages: int) -> tuple[Mix, ...]:
    """Return the mixes of kinds that the mean stage has a unit of, but for one that follows from
    the others. kinds: of each unit in order, numbers from 0 on."""
    counts = Counter(kinds)
    usual = [kind for kind, count in counts.items() if num_stages <= count < len(kinds)]
    return tuple(_mix(kinds, kind, counts) for kind in usual[1:])


def _mix(kinds: Sequence[int], kind: int, counts: Counter[int]) -> Mix:
    share = counts[kind] / (len(kinds) - counts[kind])
    weights = tuple(1.0 if one == kind else -share for one in range(len(counts)))
    sums = [*accumulate((weights[one] for one in kinds), initial=0.0)]
    return Mix(weights, min(sums), max(sums))
