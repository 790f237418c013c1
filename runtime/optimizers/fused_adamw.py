"""AdamW of all buckets of a rank by one launch of a kernel for each combination of dtypes.

The launch also does what would be passes of their own: stochastic rounding, the copy of float32
masters that forward reads, and clearing gradients where the rank holds them once.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..engine.buckets import FlatBucket
from .options import OptimizerOptions
from .rounding import key_of, rows_of
from .rule import Run
from .triton_adamw import CHUNK, Kinds, Table, fused_adamw_


@dataclass(frozen=True)
class _Span:
    """Neighbouring elements of a run, from element `start` of it. columns, first and stride: see
    `Table`; of a span that does not round they say nothing."""

    run: Run
    param: str
    start: int
    count: int
    columns: int
    first: int
    stride: int


class FusedAdamW:
    """buckets: with their runs, in any order. Tensors of runs and buckets must stay where they are.

    clears: whether the gradients of all buckets are cleared by `update`.
    """

    def __init__(
        self, buckets: Sequence[tuple[FlatBucket, Sequence[Run]]], options: OptimizerOptions
    ) -> None:
        self.options = options
        self.clears = all(bucket.holds_gradients_once for bucket, _ in buckets)
        found = defaultdict[Kinds, list[tuple[_Span, tuple[int, ...]]]](list)
        for bucket, runs in buckets:
            for run in runs:
                self._add(run, bucket, found)
        self._launches = [_Launch(kinds, spans) for kinds, spans in found.items()]

    def _add(
        self, run: Run, bucket: FlatBucket, found: dict[Kinds, list[tuple[_Span, tuple[int, ...]]]]
    ) -> None:
        own = run.weights.data_ptr() == bucket.shard[run.start :].data_ptr()
        copy = None if own else bucket.shard[run.start : run.stop]
        rounds = self.options.rounding == "stochastic" and run.weights.dtype is torch.bfloat16
        tensors = (run.weights, run.grad, run.states["exp_avg"], run.states["exp_avg_sq"], copy)
        whole = [_Span(run, "", 0, run.weights.numel(), 0, 0, 0)]
        for span in _spans(run) if rounds else whole:
            addresses = tuple(_address(x, span.start) for x in tensors)
            aligned = not any(address % 16 for address in addresses)
            dtype = None if copy is None else copy.dtype
            kinds = Kinds(run.weights.dtype, run.grad.dtype, dtype, rounds, self.clears, aligned)
            found[kinds].append((span, addresses))

    def update(self, lr: float, count: int, scale: float) -> None:
        """Update all weights by scale * gradient. count: updates up to and with this one."""
        for launch in self._launches:
            launch.run(self.options, lr, count, scale)


class _Launch:
    """Spans of one kind."""

    def __init__(self, kinds: Kinds, spans: list[tuple[_Span, tuple[int, ...]]]) -> None:
        self.kinds, self.spans = kinds, [span for span, _ in spans]
        device = self.spans[0].run.weights.device
        rows = [(*found, s.count, s.columns, s.first, s.stride) for s, found in spans]
        rates = [(s.run.group.lr_scale, s.run.decay) for s in self.spans]
        programs = torch.tensor([-(-s.count // CHUNK) for s in self.spans])
        numbers = torch.arange(int(programs.sum())) - torch.repeat_interleave(
            programs.cumsum(0) - programs, programs
        )
        which = torch.repeat_interleave(torch.arange(len(programs)), programs)
        # Read by the copy of a step's keys until the step's end, which the host waits for.
        self._keys = torch.zeros(len(rows), dtype=torch.int64, pin_memory=device.type == "cuda")
        self.table = Table(
            torch.tensor(rows, dtype=torch.int64, device=device),
            torch.tensor(rates, dtype=torch.float32, device=device),
            self._keys.to(device, copy=True),
            torch.stack([which, numbers], dim=1).to(device, torch.int32),
        )

    def run(self, options: OptimizerOptions, lr: float, count: int, scale: float) -> None:
        if self.kinds.rounds:
            keys = [key_of(options.seed, count, span.param) for span in self.spans]
            self._keys.copy_(torch.tensor(keys))
            self.table.keys.copy_(self._keys, non_blocking=True)
        fused_adamw_(
            self.table,
            self.kinds,
            scale=scale,
            lr=lr,
            betas=(options.beta1, options.beta2),
            eps=options.eps,
            count=count,
        )


def _spans(run: Run) -> Iterator[_Span]:
    """Give the parts of a run, each as matrices whose rows lie one behind the other."""
    for part in run.parts:
        for rows, first, stride in rows_of(part, run.weights):
            if rows.stride(0) != rows.shape[1]:
                for number, row in enumerate(rows):
                    yield _span(run, part.param.name, row[None], first + number * stride, 0)
            else:
                yield _span(run, part.param.name, rows, first, stride)


def _span(run: Run, param: str, rows: Tensor, first: int, stride: int) -> _Span:
    """Return the span of a matrix. One row counts on as it lies."""
    start = int(rows.storage_offset() - run.weights.storage_offset())
    columns = rows.shape[1]
    many = rows.shape[0] > 1
    return _Span(run, param, start, rows.numel(), columns, first, stride if many else columns)


def _address(x: Tensor | None, start: int) -> int:
    return 0 if x is None else x.data_ptr() + start * x.element_size()
