"""AdamW of all buckets of a rank by one launch of a kernel, or a few: one for each of `Kinds`.

A launch also does what would be passes of their own: stochastic rounding, the copy of float32
masters that forward reads, and clearing gradients.
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

# The kernel reads 16 bytes at a time where addresses and counts are multiples of so many elements.
ALIGNED = 16


@dataclass(frozen=True)
class _Span:
    """Elements of a run that are updated alike.

    tensors: as TENSORS names them, flat, from the first element on; where nothing is copied,
    weights stand for the copy. count: of elements. columns, pitch, first and stride: see `Table`;
    they are read only where weights round, the second only where rows lie apart.
    """

    tensors: tuple[Tensor, ...]
    count: int
    group: Group
    param: str = ""
    columns: int = 1
    pitch: int = 1
    first: int = 0
    stride: int = 1

    @property
    def strided(self) -> bool:
        return self.pitch != self.columns

    @property
    def unit(self) -> int:
        """Return the unit of offsets and the count: ALIGNED, or 1 where it does not divide them."""
        starts = all(x.data_ptr() % (ALIGNED * x.element_size()) == 0 for x in self.tensors)
        whole = starts and self.count % ALIGNED == 0 and not self.strided
        return ALIGNED if whole else 1


class FusedAdamW:
    """buckets: with their runs, in any order. Tensors of runs and buckets must stay where they are.

    clears: whether the gradients of all buckets are cleared by `update`.
    """

    def __init__(
        self, buckets: Sequence[tuple[FlatBucket, Sequence[Run]]], options: OptimizerOptions
    ) -> None:
        self.options = options
        self.clears = all(bucket.clears_its_shard for bucket, _ in buckets)
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
        whole = _Span((w, g, m, v, read), run.stop - run.start, run.group)
        kinds = w.dtype, g.dtype, read.dtype if copies else None, rounds, self.clears
        for span in _rounded(whole, run) if rounds else [whole]:
            yield Kinds(*kinds, span.strided, span.unit), span

    def update(self, lr: float, count: int, scale: float) -> None:
        """Update all weights by scale * gradient. count: updates up to and with this one."""
        for launch in self._launches:
            launch.run(self.options, lr, count, scale)


def _rounded(whole: _Span, run: Run) -> Iterator[_Span]:
    """Give the matrices that the parts of a run are."""
    for part in run.parts:
        for matrix, first, stride in rows_of(part, run.weights):
            start = int(matrix.storage_offset() - run.weights.storage_offset())
            tensors, (rows, columns) = tuple(x[start:] for x in whole.tensors), matrix.shape
            pitch, step = (matrix.stride(0), stride) if rows > 1 else (columns, columns)
            given = tensors, matrix.numel(), run.group, part.param.name
            yield _Span(*given, columns=columns, pitch=pitch, first=first, stride=step)


class _Launch:
    """Spans of one kind."""

    def __init__(self, kinds: Kinds, spans: list[_Span]) -> None:
        self.kinds, self.params = kinds, list(dict.fromkeys(span.param for span in spans))
        bases, number = spans[0].tensors, {name: n for n, name in enumerate(self.params)}
        device = bases[0].device
        rows = [
            (*_offsets(span, bases, kinds.unit), span.count // kinds.unit)
            + (span.columns, span.pitch, span.first, span.stride, number[span.param])
            for span in spans
        ]
        rates = [(span.group.lr_scale, span.group.weight_decay or 0.0) for span in spans]
        # The device may still read them when `run` returns, but not when the host has the norm of
        # the next step.
        self._keys = torch.zeros(len(number), dtype=torch.int64, pin_memory=device.type == "cuda")
        self.table = Table(
            bases,
            torch.tensor(rows, dtype=torch.int64, device=device),
            torch.tensor(rates, dtype=torch.float32, device=device),
            self._keys.to(device, copy=True),
            _chunks(spans).to(device, torch.int32),
        )

    def run(self, options: OptimizerOptions, lr: float, count: int, scale: float) -> None:
        if self.kinds.rounds:
            keys = [key_of(options.seed, count, name) for name in self.params]
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


def _offsets(span: _Span, bases: tuple[Tensor, ...], unit: int) -> Iterator[int]:
    """Give where a span's tensors begin, from the bases on."""
    for x, base in zip(span.tensors, bases, strict=True):
        yield (x.data_ptr() - base.data_ptr()) // (unit * x.element_size())


def _chunks(spans: list[_Span]) -> Tensor:
    """Return the table of programs: a span, and which of its chunks."""
    counts = torch.tensor([-(-span.count // CHUNK) for span in spans])
    before = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    numbers = torch.arange(int(counts.sum())) - before
    return torch.stack([torch.repeat_interleave(torch.arange(len(spans)), counts), numbers], dim=1)
