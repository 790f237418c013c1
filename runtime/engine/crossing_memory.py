"""Memory outside of recordings for what crosses between ranks of a pipeline.

A recorded action's memory is the next one's once nothing needs it, so no recording's own memory
travels. What leaves is copied here, and what arrives is copied from here.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from .boundary import Crossing, crossing_like, values_of
from .p2p import SENDS_IN_FLIGHT

Values = tuple[Tensor, ...]


class CrossingMemory:
    """Tensors of one recorded step, as many as travel at a time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._leaving: dict[Hashable, list[Values]] = defaultdict(list)
        self._turns: Counter[Hashable] = Counter()
        self._arriving: dict[Hashable, Values] = {}

    def leaving(self, kind: str, target: int, values: Values) -> Values:
        """Return where the next send to a pp rank is copied. SENDS_IN_FLIGHT places take turns."""
        key = kind, target, _shapes(values)
        turn = self._turns[key]
        self._turns[key] += 1
        if turn < SENDS_IN_FLIGHT:
            self._leaving[key].append(tuple(torch.empty_like(x) for x in values))
        return self._leaving[key][turn % SENDS_IN_FLIGHT]

    def arriving(self, described: Any) -> Values:
        """Return the place of every receive that an ENTRY or EXIT describes."""
        if described not in self._arriving:
            self._arriving[described] = values_of(crossing_like(described, self._empty))
        return self._arriving[described]

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)


def _shapes(values: Values) -> Hashable:
    return tuple((x.shape, x.dtype) for x in values)


def copy_into(places: Values, values: Values) -> None:
    """Copy what leaves into its place."""
    for place, x in zip(places, values, strict=True):
        place.copy_(x)


def copied(described: Any, places: Values) -> Crossing:
    """Return a copy of what arrived."""
    left = iter(places)
    return crossing_like(described, lambda *_: next(left).clone())
