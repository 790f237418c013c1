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
from .options import Group, OptimizerOptions
from .rounding import key_of, rows_of
from .rule import Run
from .triton_adamw import CHUNK, Kinds, Table, fused_adamw_

# Elements; vectors of 16 bytes begin at multiples of it in any dtype.
ALIGNED = 16


@dataclass(frozen=True)
class _Span:
    """Neighbouring elements of a run that are updated alike.

    tensors: in the order of SPAN, each [count]; where nothing is copied, weights stand for it.
    columns, first and stride: see `Table`; they count where weights round.
    """

    tensors: tuple[Tensor, ...]
    group: Group
    param: str = ""
    columns: int = 0
    first: int = 0
    stride: int = 0

    @property
    def count(self) -> int:
        return self.tensors[0].numel()

    def part(self, start: int, count: int) -> tuple[Tensor, ...]:
        return tuple(x[start : start + count] for x in self.tensors)

    @property
    def unit(self) -> int:
        """Return what places and the count are multiples of."""
        whole = all(x.data_ptr() % (ALIGNED * x.element_size()) == 0 for x in self.tensors)
        return ALIGNED if whole and self.count % ALIGNED == 0 else 1


class FusedAdamW:
    """buckets: with their runs, in any order. Tensors of runs and buckets must stay where they are.

    clears: whether the gradients of all buckets are cleared by `update`.
    """

    def __init__(
        self, buckets: Sequence[tuple[FlatBucket, Sequence[Run]]], options: OptimizerOptions
    ) -> None:
        self.options = options
        self.clears = all(bucket.holds_gradients_once for bucket, _ in buckets)
        found = defaultdict[Kinds, list[_Span]](list)
        for bucket, runs in buckets:
            for run in runs:
                for kinds, span in self._spans(run, bucket.shard[run.start : run.stop]):
                    found[kinds].append(span)
        self._launches = [_Launch(kinds, spans) for kinds, spans in found.items()]

    def _spans(self, run: Run, read: Tensor) -> Iterator[tuple[Kinds, _Span]]:
        """Give the spans of a run. read: what forward reads of it."""
        w, g, m, v = run.weights, run.grad, run.states["exp_avg"], run.states["exp_avg_sq"]
        copies = read.data_ptr() != w.data_ptr()
        rounds = self.options.rounding == "stochastic" and w.dtype is torch.bfloat16
        whole = _Span((w, g, m, v, read), run.group)
        kinds = w.dtype, g.dtype, read.dtype if copies else None, rounds, self.clears
        for span in _rounded(whole, run) if rounds else [whole]:
            yield Kinds(*kinds, span.unit), span

    def update(self, lr: float, count: int, scale: float) -> None:
        """Update all weights by scale * gradient. count: updates up to and with this one."""
        for launch in self._launches:
            launch.run(self.options, lr, count, scale)


def _rounded(whole: _Span, run: Run) -> Iterator[_Span]:
    """Give the parts of a run, each as matrices whose rows lie one behind the other."""
    for part in run.parts:
        for matrix, first, stride in rows_of(part, run.weights):
            rows, columns = matrix.shape
            if matrix.stride(0) == columns or rows == 1:
                found = [(matrix, first, stride if rows > 1 else columns)]
            else:
                found = [(x, first + n * stride, columns) for n, x in enumerate(matrix)]
            for x, index, step in found:
                start = int(x.storage_offset() - run.weights.storage_offset())
                tensors = whole.part(start, x.numel())
                yield _Span(tensors, run.group, part.param.name, columns, index, step)


class _Launch:
    """Spans of one kind."""

    def __init__(self, kinds: Kinds, spans: list[_Span]) -> None:
        self.kinds, self.spans = kinds, spans
        bases = spans[0].tensors
        device = bases[0].device
        rows = [
            (*_places(span, bases, kinds.unit), span.count // kinds.unit)
            + (span.columns, span.first, span.stride)
            for span in spans
        ]
        rates = [(span.group.lr_scale, span.group.weight_decay or 0.0) for span in spans]
        # Read by the copy of a step's keys until the step's end, which the host waits for.
        self._keys = torch.zeros(len(rows), dtype=torch.int64, pin_memory=device.type == "cuda")
        self.table = Table(
            bases,
            torch.tensor(rows, dtype=torch.int64, device=device),
            torch.tensor(rates, dtype=torch.float32, device=device),
            self._keys.to(device, copy=True),
            _chunks(spans).to(device, torch.int32),
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


def _places(span: _Span, bases: tuple[Tensor, ...], unit: int) -> Iterator[int]:
    """Give where a span's tensors begin, relative to the bases."""
    for x, base in zip(span.tensors, bases, strict=True):
        yield (x.data_ptr() - base.data_ptr()) // (unit * x.element_size())


def _chunks(spans: list[_Span]) -> Tensor:
    """Return the table of programs: a span, and the number of a chunk of it."""
    counts = torch.tensor([-(-span.count // CHUNK) for span in spans])
    before = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    numbers = torch.arange(int(counts.sum())) - before
    return torch.stack([torch.repeat_interleave(torch.arange(len(spans)), counts), numbers], dim=1)
