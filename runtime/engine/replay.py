"""Recorded micro-batches and actions of a rank, each issued to the device as one CUDA graph.

The host issues some thousand kernels a micro-batch, one after the other; where rows are few the
device waits for it. Here kernels are recorded once and issued again by one call. They touch the
same memory each time: what a micro-batch gives is copied into tensors that stay, weights and
gradients lie in buckets that stay, and what is between forward and backward has memory of its own,
as much as without a recording. Collectives are recorded too.

Where each backward follows its forward, a rank that holds the whole model records both together,
and those of a step's last micro-batch again where gradients travel. Elsewhere several micro-batches
are between forward and backward at a time, and a rank records every action of its schedule.
"""

import gc
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial

import torch
from torch import Tensor

from .stage import Batch

# A stage that does not train has nothing to record in its backward.
warnings.filterwarnings("ignore", message=".*CUDA Graph is empty")

Call = Callable[[], object]
Recorder = Callable[[Call], Call]  # records what a call issues; returns what issues it again
Kind = tuple[tuple[str, torch.Size, torch.dtype], ...]  # of a micro-batch: what each role gives


class Recordings(ABC):
    """The recordings of a rank's step.

    why_not: what torch said of what it could not record, "" otherwise.
    """

    def __init__(self, recorder: Callable[[], Recorder]) -> None:
        """recorder: returns what records calls that share memory, such as `cuda_graphs`."""
        self._recorder = recorder
        self._warm: Kind | None = None
        self.why_not = ""
        self.drop()

    def make_room(self) -> None:
        """Forget what is recorded where it takes more memory than is free: an evaluation holds less
        of a micro-batch, but elsewhere."""
        if self._held and torch.cuda.mem_get_info()[0] < self._held:
            self.drop()

    def stop(self, why: str) -> None:
        """Record nothing from now on, for this reason."""
        self.why_not = why
        self.drop()

    def drop(self) -> None:
        """Forget what is recorded; its memory is free for others."""
        self._held = 0  # bytes
        self._recorded = False
        self._forget()

    def run(self, batches: list[Batch]) -> bool:
        """Issue every micro-batch of a step. Return False where the step is still to be run, as
        none was issued: its batches differ in kind, torch cannot record them, or their kernels were
        not compiled and loaded yet, which a recording cannot wait for."""
        kinds = set(map(_kind, batches))
        if self.why_not or len(kinds) > 1 or not self._is_warm(*kinds):
            return False
        if not self._recorded and not self._try_to_record(batches):
            return False
        self._issue_again(batches)
        return True

    def _is_warm(self, kind: Kind) -> bool:
        """Return whether a step of the kind was run before."""
        known, self._warm = self._warm, kind
        if known != kind:
            self.drop()
        return known == kind

    def _try_to_record(self, batches: list[Batch]) -> bool:
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        try:
            self._record(batches, self._recorder())
            self._held = torch.cuda.memory_reserved() - before
            self._recorded = True
        except RuntimeError as error:
            self.why_not = str(error).strip().split("\n")[0]
            self.drop()
            with suppress(RuntimeError):  # torch may count the recording as under way
                torch.cuda.empty_cache()
        return self._recorded

    @abstractmethod
    def _record(self, batches: list[Batch], record: Recorder) -> None:
        """Record with batches in tensors that stay. Raises RuntimeError where torch cannot."""

    @abstractmethod
    def _issue_again(self, batches: list[Batch]) -> None:
        """Issue what was recorded with other batches."""

    @abstractmethod
    def _forget(self) -> None:
        """Forget what was recorded."""


class Replay(Recordings):
    """The recorded micro-batch of a rank that holds the whole model."""

    def __init__(
        self,
        issue: Callable[[Batch, bool], None],
        recorder: Callable[[], Recorder],
        alike: bool,
    ) -> None:
        """issue: runs forward and backward of a micro-batch, told whether it ends the step. alike:
        the last micro-batch of a step issues the same as all others."""
        self._issue, self._alike = issue, alike
        super().__init__(recorder)

    def _forget(self) -> None:
        self._again: dict[bool, Call] = {}  # by whether it ends a step
        self._given: dict[str, Tensor] = {}

    def _record(self, batches: list[Batch], record: Recorder) -> None:
        given = self._given = _kept(batches[0])
        ends = [True] if self._alike or len(batches) == 1 else [False, True]
        self._again = {last: record(partial(self._issue, given, last)) for last in ends}

    def _issue_again(self, batches: list[Batch]) -> None:
        *others, last = batches
        for batch in others:
            _copy(self._given, batch)
            self._again[self._alike]()
        _copy(self._given, last)
        self._again[True]()


class ScheduleReplay(Recordings):
    """The recorded actions of a rank's schedule, one recording for each.

    They are issued in the order in which they were recorded, so one's memory is another's once
    nothing needs it, as without recordings. Transfers are issued by the host between them.
    """

    def __init__(
        self,
        record_step: Callable[[list[Batch], Recorder], list[Call]],
        recorder: Callable[[], Recorder],
    ) -> None:
        """record_step: records the actions of a step over batches; returns what issues each."""
        self._record_step = record_step
        super().__init__(recorder)

    def _forget(self) -> None:
        self._again: list[Call] = []
        self._given: list[dict[str, Tensor]] = []

    def _record(self, batches: list[Batch], record: Recorder) -> None:
        self._given = [_kept(batch) for batch in batches]
        self._again = self._record_step(list(self._given), record)

    def _issue_again(self, batches: list[Batch]) -> None:
        for given, batch in zip(self._given, batches, strict=True):
            _copy(given, batch)
        for again in self._again:
            again()


def cuda_graphs() -> Recorder:
    """Return a recorder. The device runs nothing while it records. One recording's memory is
    another's once it has run.

    Other threads may take memory meanwhile: one writes a checkpoint, one reads rows.
    """
    pool, stream = torch.cuda.graph_pool_handle(), _stream(torch.cuda.current_device())
    gc.collect()
    torch.cuda.synchronize()

    def record(call: Call) -> Call:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                call()
            except BaseException:
                with suppress(RuntimeError):  # of the same recording, which the first error says
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph.replay

    return record


@cache
def _stream(device: int) -> torch.cuda.Stream:
    """Return the stream that a device records on: matmuls keep a workspace for each stream."""
    return torch.cuda.Stream(device)


def _kind(batch: Batch) -> Kind:
    return tuple((role, x.shape, x.dtype) for role, x in batch.items())


def _kept(batch: Batch) -> dict[str, Tensor]:
    return {role: x.clone() for role, x in batch.items()}


def _copy(into: Mapping[str, Tensor], batch: Batch) -> None:
    torch._foreach_copy_(list(into.values()), [batch[role] for role in into])
