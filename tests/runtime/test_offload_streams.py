"""The order that streams keep among offload's copies, told without a GPU.

Streams are stood in for by lists of what they were given; who waits for whom makes a partial order
(vector clocks). Whatever reads memory must come after what wrote it, and whatever writes it again,
or gets it from the allocator, after what read it.
"""

from contextlib import contextmanager

import pytest
import torch

from meshwright.runtime.engine import offload
from meshwright.runtime.engine.offload import IN_TRANSIT, HostStore

Clock = dict[str, int]


class Stream:
    """Ops get the clock of their stream; an event is a clock that another stream takes over."""

    def __init__(self, name: str) -> None:
        self.name, self.clock = name, {}

    def op(self) -> tuple[str, int, Clock]:
        self.clock[self.name] = self.clock.get(self.name, 0) + 1
        return self.name, self.clock[self.name], dict(self.clock)

    def record_event(self) -> Clock:
        return dict(self.clock)

    def wait_event(self, event: Clock) -> None:
        for name, count in event.items():
            self.clock[name] = max(self.clock.get(name, 0), count)

    def wait_stream(self, other: "Stream") -> None:
        self.wait_event(other.record_event())


class Device:
    """Three streams, and every access to memory: (address, what, op)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compute, self.out, self.back = map(Stream, ("compute", "out", "back"))
        self.current = self.compute
        self.accesses: list[tuple[int, str, tuple]] = []
        self.alive: list[torch.Tensor] = []  # so that no address is used twice
        monkeypatch.setattr(offload, "copy_streams", lambda _: (self.out, self.back))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self.on)
        monkeypatch.setattr(offload, "_copy", self.copy)
        self.plain_empty_like = torch.empty_like
        monkeypatch.setattr(torch, "empty_like", self.empty_like)

    def empty_like(self, like: torch.Tensor, **_: object) -> torch.Tensor:
        """Memory that a kernel of the compute stream was the last to use."""
        tensor = self.plain_empty_like(like)
        self.compute_on(tensor, "write")
        return tensor

    @contextmanager
    def on(self, stream: Stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    def access(self, tensor: torch.Tensor, what: str, op: tuple) -> None:
        self.alive.append(tensor)
        self.accesses.append((tensor.data_ptr(), what, op))

    def copy(self, sources: list[torch.Tensor], targets: list[torch.Tensor]) -> None:
        for source, target in zip(sources, targets, strict=True):
            op = self.current.op()
            self.access(source, "read", op)
            self.access(target, "write", op)
            target.copy_(source)

    def compute_on(self, tensor: torch.Tensor, what: str) -> None:
        self.access(tensor, what, self.compute.op())

    def races(self) -> list[tuple]:
        """Pairs of accesses to one address, one of them a write, that no waiting orders."""
        found = []
        for k, (address, what, (stream, count, _)) in enumerate(self.accesses):
            for other, later, (name, _, clock) in self.accesses[k + 1 :]:
                clash = address == other and "write" in (what, later)
                if clash and clock.get(stream, 0) < count:
                    found.append((stream, what, name, later))
        return found


def run_steps(device: Device, store: HostStore, units: int = 5, microbatches: int = 4) -> None:
    """What a stage does of 1F1B with two micro-batches in flight, twice over."""

    def forward(microbatch: int) -> None:
        for index in range(units):
            value = torch.full((2, 3), float(10 * microbatch + index))
            device.compute_on(value, "write")
            ends = index == units - 1
            keep = [] if ends else [(index - k, microbatch) for k in range(1, IN_TRANSIT)]
            freed = [v for key, (vs, _) in store._leaving.items() if key not in keep for v in vs]
            store.settle(keep)
            for tensor in freed:  # the allocator hands it to the next kernel
                device.compute_on(tensor, "write")
            if not ends:
                store.push((index, microbatch), [value])

    def backward(microbatch: int) -> None:
        for index in reversed(range(units)):
            if index < units - 1:
                (value,) = store.take((index, microbatch))
                assert value[0, 0] == 10 * microbatch + index
            for before in range(1, IN_TRANSIT + 1):
                store.fetch((index - before, microbatch))
            if index < units - 1:
                device.compute_on(value, "read")
                device.compute_on(value, "write")  # freed, and used again

    for _ in range(2):
        forward(0)
        for microbatch in range(1, microbatches):
            forward(microbatch)
            backward(microbatch - 1)
        backward(microbatches - 1)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def gpu_store(monkeypatch: pytest.MonkeyPatch) -> HostStore:
    monkeypatch.setattr(HostStore, "_new", _new_unpinned)
    store = HostStore(torch.device("cpu"))
    store.on_gpu = True
    return store


def _new_unpinned(self: HostStore, kind: tuple) -> torch.Tensor:
    self._made[kind] += 1
    return torch.empty(kind[0], dtype=kind[1])


def test_no_access_races_with_another(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    store = gpu_store(monkeypatch)
    run_steps(device, store)
    assert len(device.accesses) > 100
    assert device.races() == []
    assert store.host_bytes == 2 * 4 * 6 * 4  # two micro-batches of four units, float32 [2, 3]


@pytest.mark.parametrize(
    ("who", "wait"), [("compute", "wait_event"), ("out", "wait_stream"), ("back", "wait_stream")]
)
def test_a_stream_that_does_not_wait_races(
    device: Device, monkeypatch: pytest.MonkeyPatch, who: str, wait: str
) -> None:
    store = gpu_store(monkeypatch)
    setattr(getattr(device, who), wait, lambda _: None)
    run_steps(device, store)
    assert device.races()
