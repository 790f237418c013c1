"""Saved values that wait for backward in the host's memory, and the streams that carry them.

Note. Three streams touch a value. Out: the compute stream makes it, the stream *out* copies it into
a pinned buffer, and the device's memory is given back once compute has waited for that copy: after
the forward of IN_TRANSIT instances more, so those of at most so many are leaving. Back: memory is
taken on the compute stream, the stream *back* copies into it, and compute waits before it reads. A
buffer goes back into the pool after that wait, and the next copy into it waits for compute: no copy
ever overtakes another one's reader. Where there are no streams (CPU) the same calls copy at once.
"""

from collections import defaultdict
from functools import cache

import torch
from torch import Tensor

# Instances whose values may be on their way at a time. Two hide behind each other's compute where a
# layer is two instances of different times. The plan's memory counts with this number.
IN_TRANSIT = 2
Key = tuple[int, int]  # instance, micro-batch
Kind = tuple[torch.Size, torch.dtype]


@cache
def copy_streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """(out, back) of a device: links to the host carry both directions at once."""
    return torch.cuda.Stream(device), torch.cuda.Stream(device)


class HostStore:
    """The offloaded values of one stage, by instance and micro-batch."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.on_gpu = device, device.type == "cuda"
        # A dry run has no memory on either side.
        self.host = device if device.type == "meta" else torch.device("cpu")
        self._free: dict[Kind, list[Tensor]] = defaultdict(list)
        self._made: dict[Kind, int] = defaultdict(int)
        self.clear()

    def clear(self) -> None:
        """Forget what is away. Buffers that were in use are not used again."""
        self._away: dict[Key, tuple[list[Tensor], torch.cuda.Event | None]] = {}
        self._back: dict[Key, tuple[list[Tensor], list[Tensor], torch.cuda.Event | None]] = {}
        self._leaving: dict[Key, tuple[list[Tensor], torch.cuda.Event | None]] = {}

    @property
    def host_bytes(self) -> int:
        """Bytes of all buffers, in use or free."""
        return sum(n * shape.numel() * dtype.itemsize for (shape, dtype), n in self._made.items())

    def reserve(self, times: int) -> None:
        """Buffers for `times` as many micro-batches as the pool was made for: to take pinned memory
        may wait for all that runs on the device."""
        for kind, count in list(self._made.items()):
            self._free[kind] += [self._new(kind) for _ in range((times - 1) * count)]

    def push(self, key: Key, values: list[Tensor]) -> None:
        """Start copying values to the host, behind the compute that follows."""
        buffers = [self._buffer(v) for v in values]
        event = None
        if self.on_gpu:
            out, _ = copy_streams(self.device)
            out.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(out):
                _copy(values, buffers)
                event = out.record_event()
        else:
            _copy(values, buffers)
        self._away[key] = buffers, event
        self._leaving[key] = values, event

    def settle(self, keep: list[Key]) -> None:
        """Give back the device memory of all that was pushed but `keep`; compute waits for it."""
        for key in [k for k in self._leaving if k not in keep]:
            _, event = self._leaving.pop(key)
            if event is not None:
                torch.cuda.current_stream(self.device).wait_event(event)

    def fetch(self, key: Key) -> None:
        """Start copying values back, behind the compute that follows."""
        if key not in self._away:
            return
        buffers, left = self._away.pop(key)
        values = [torch.empty_like(b, device=self.device, pin_memory=False) for b in buffers]
        event = None
        if self.on_gpu and left is not None:
            _, back = copy_streams(self.device)
            if key in self._leaving:  # else compute waited for the copy
                back.wait_event(left)
            back.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(back):
                _copy(buffers, values)
                event = back.record_event()
        else:
            _copy(buffers, values)
        self._back[key] = values, buffers, event

    def take(self, key: Key) -> list[Tensor]:
        """The values, on the device; fetched now where nobody did before."""
        self.fetch(key)
        values, buffers, event = self._back.pop(key)
        if event is not None:
            torch.cuda.current_stream(self.device).wait_event(event)
        for buffer in buffers:
            self._free[buffer.shape, buffer.dtype].append(buffer)
        return values

    def _buffer(self, value: Tensor) -> Tensor:
        kind = value.shape, value.dtype
        return self._free[kind].pop() if self._free[kind] else self._new(kind)

    def _new(self, kind: Kind) -> Tensor:
        self._made[kind] += 1
        return torch.empty(kind[0], dtype=kind[1], device=self.host, pin_memory=self.on_gpu)


def _copy(sources: list[Tensor], targets: list[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source, non_blocking=True)
