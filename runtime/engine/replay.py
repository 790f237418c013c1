"""Micro-batches of a rank that holds the whole model, each issued to the device as one CUDA graph.

The host issues some thousand kernels a micro-batch, one after the other; where rows are few the
device waits for it. Here the kernels of a micro-batch's forward and backward are recorded once and
issued again by one call. They touch the same memory each time: what a micro-batch gives is copied
into tensors that stay, weights and gradients lie in buckets that stay, and what is between forward
and backward has memory of its own, as much as without a recording. Collectives are recorded too;
where gradients travel in a step's last micro-batch alone, that one is a recording of its own.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from .stage import Batch

Call = Callable[[], object]
Kind = tuple[tuple[str, torch.Size, torch.dtype], ...]  # of a micro-batch: what each role gives


class Replay:
    """The recorded micro-batches of a rank.

    why_not: what torch said of a micro-batch that it could not record, "" otherwise.
    """

    def __init__(
        self,
        issue: Callable[[Batch, bool], None],
        recorder: Callable[[], Callable[[Call], Call]],
        alike: bool,
    ) -> None:
        """issue: runs forward and backward of a micro-batch, told whether it ends the step.
        recorder: returns what records calls that share memory, such as `cuda_graphs`. alike: the
        last micro-batch of a step issues the same as all others."""
        self._issue, self._recorder, self._alike = issue, recorder, alike
        self._warm: Kind | None = None
        self.why_not = ""
        self.drop()

    def make_room(self) -> None:
        """Forget what is recorded where it takes more memory than is free: an evaluation holds less
        of a micro-batch, but elsewhere."""
        if self._held and torch.cuda.mem_get_info()[0] < self._held:
            self.drop()

    def drop(self) -> None:
        """Forget what is recorded; its memory is free for others."""
        self._held = 0  # bytes
        self._again: dict[bool, Call] = {}  # by whether it ends a step
        self._given: dict[str, Tensor] = {}

    def run(self, batches: list[Batch]) -> bool:
        """Issue every micro-batch of a step. Return False where the step is still to be run, as
        none was issued: its batches differ in kind, torch cannot record them, or their kernels were
        not compiled and loaded yet, which a recording cannot wait for."""
        kinds = set(map(_kind, batches))
        if self.why_not or len(kinds) > 1 or not self._is_warm(*kinds):
            return False
        if not self._again and not self._record(batches):
            return False
        *others, last = batches
        for batch in others:
            _copy(self._given, batch)
            self._again[self._alike]()
        _copy(self._given, last)
        self._again[True]()
        return True

    def _is_warm(self, kind: Kind) -> bool:
        """Return whether a step of the kind was run before."""
        known, self._warm = self._warm, kind
        if known != kind:
            self.drop()
        return known == kind

    def _record(self, batches: list[Batch]) -> bool:
        """Record micro-batches with a batch in tensors that stay; return whether it worked."""
        given = self._given = {role: x.clone() for role, x in batches[0].items()}
        record, issue = self._recorder(), self._issue
        ends = [True] if self._alike or len(batches) == 1 else [False, True]
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        try:
            self._again = {last: record(partial(issue, given, last)) for last in ends}
            self._held = torch.cuda.memory_reserved() - before
        except RuntimeError as error:
            self.why_not = str(error).strip().split("\n")[0]
            self.drop()
        return not self.why_not


def cuda_graphs() -> Callable[[Call], Call]:
    """Return what records what a call issues to the device, which runs nothing meanwhile. One
    recording's memory is another's once it has run.

    Other threads may take memory meanwhile: one writes a checkpoint, one reads rows.
    """
    pool = torch.cuda.graph_pool_handle()

    def record(call: Call) -> Call:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            call()
        return graph.replay

    return record


def _kind(batch: Batch) -> Kind:
    return tuple((role, x.shape, x.dtype) for role, x in batch.items())


def _copy(into: Mapping[str, Tensor], batch: Batch) -> None:
    torch._foreach_copy_(list(into.values()), [batch[role] for role in into])
