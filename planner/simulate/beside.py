"""Buckets of parameters and gradients on their way beside the unit that runs."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class Beside:
    """What is gathered and reduced beside units, as they are added in order.

    mean: the largest mean of the buckets of two that follow each other. One of them is gathered or
    reduced while the other one runs, so twice the mean is what both take.
    """

    mean: float = 0.0
    last: float = 0.0

    def add(self, bucket_bytes: float) -> None:
        self.mean = max(self.mean, (self.last + bucket_bytes) / 2)
        self.last = bucket_bytes


def beside(buckets: Iterable[float]) -> float:
    """Return the largest mean of two buckets that follow each other, in bytes."""
    found = Beside()
    for size in buckets:
        found.add(size)
    return found.mean
