"""Recordings of the actions of a rank's schedule, and what the host issues between them."""

from functools import partial
from typing import TYPE_CHECKING, Any

from .boundary import values_of
from .crossing_memory import CrossingMemory, copied, copy_into
from .replay import Call, Recorder

if TYPE_CHECKING:
    from .executor import Executor


class ScheduleRecorder:
    """Records the actions of one step, in the order of the schedule."""

    def __init__(self, executor: "Executor[Any]", record: Recorder) -> None:
        self.executor, self.record = executor, record
        self.memory = CrossingMemory(executor.device)

    def recorded(self, kind: str, stage: int, microbatch: int) -> Call:
        """Record an action; return what issues it again."""
        again = self._recorded(kind, stage, microbatch)

        def issue() -> None:
            with self.executor.at(kind, stage, microbatch):
                again()

        return issue

    def _recorded(self, kind: str, stage: int, microbatch: int) -> Call:
        if kind.startswith("SEND"):
            return self._send(kind[-1], stage, microbatch)
        if kind.startswith("RECV"):
            return self._receive(kind[-1], stage, microbatch)
        return self.record(partial(self._run_whole, kind, stage, microbatch))

    def _run_whole(self, kind: str, stage: int, microbatch: int) -> None:
        """Run an action and wait for the reductions that it started."""
        self.executor.run_action(kind, stage, microbatch)
        for bucket in self.executor.buckets.values():
            bucket.finish()

    def _send(self, kind: str, stage: int, microbatch: int) -> Call:
        values = values_of(self.executor.outgoing.pop((kind, stage, microbatch)))
        transfers, target = self.executor.transfers, self.executor.neighbour(f"SEND_{kind}", stage)
        places = self.memory.leaving(kind, target, values)
        copy = self.record(partial(copy_into, places, values))

        def issue() -> None:
            transfers.make_way(kind, target)
            copy()
            transfers.send(kind, places, target)

        return issue

    def _receive(self, kind: str, stage: int, microbatch: int) -> Call:
        described = self.executor.described(kind, stage)
        transfers, source = self.executor.transfers, self.executor.neighbour(f"RECV_{kind}", stage)
        places = self.memory.arriving(described)

        def copy_here() -> None:
            self.executor.arrived(kind, stage, microbatch, copied(described, places))

        copy = self.record(copy_here)

        def issue() -> None:
            transfers.fill(kind, source, places)
            copy()

        return issue
