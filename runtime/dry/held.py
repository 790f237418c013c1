"""Bytes that a rank holds: of what its functions and messages read and write, while it is alive."""

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor


class Held:
    """Count of storages. live: bytes now. peak: the most so far, in the action `at`."""

    def __init__(self) -> None:
        self.live, self.peak = 0, 0
        self.action, self.at = "", ""
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def see(self, tensors: Iterable[Tensor]) -> None:
        """Count what was not counted before, until nothing refers to it."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = id(storage)  # torch gives a storage one object as long as it lives
            if key not in self._known:
                size = storage.nbytes()
                self.live += size
                self._known[key] = weakref.ref(storage, self._end_of(key, size))
        if self.live > self.peak:
            self.peak, self.at = self.live, self.action

    def _end_of(self, key: int, size: int):  # type: ignore[no-untyped-def]
        def end(_: object) -> None:
            self.live -= size
            del self._known[key]

        return end
