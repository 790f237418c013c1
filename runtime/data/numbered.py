"""Rows that data has by number, each whole: pairs of a source and a target, texts with an image."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from ..identity import TokenizerIdentity
from .batches import Batch, check_rows
from .samples import check_vocab, places


class Counted(Protocol):
    """Data numbered from 0 on, of ids in [0, vocab). fixed: every step sees the same."""

    @property
    def name(self) -> str: ...
    @property
    def vocab(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def identity(self) -> str: ...
    @property
    def tokenizer(self) -> TokenizerIdentity | None: ...
    @property
    def fixed(self) -> bool: ...


class Numbered(Counted, Protocol):
    """Rows by number."""

    def num_labels(self, numbers: np.ndarray, seq: int) -> int:
        """Return how many labels count in rows int64 [n], without reading them."""
        ...

    def batch(self, numbers: np.ndarray, seq: int, label_count: int) -> Batch:
        """Return rows int64 [n]; one past the last has no labels. label_count: of the batch."""
        ...


class NumberedReader:
    """A Reader of numbered rows, each once an epoch in an order of (seed, epoch)."""

    def __init__(
        self, data: Numbered, *, global_batch: int, seq: int, seed: int, vocab: int | None = None
    ) -> None:
        check_vocab(data.name, data.vocab, vocab)
        self.data, self.global_batch, self.seq, self.seed = data, global_batch, seq, seed
        self.rest = 0
        self.name, self.vocab, self.identity = data.name, data.vocab, data.identity
        self.tokenizer = data.tokenizer

    def rows(self, step: int, start: int, stop: int) -> Batch:
        """Rows start..stop of the global batch of `step`; of the others only sizes are read."""
        check_rows(start, stop, self.global_batch)
        numbers = self._numbers(step)
        count = self.data.num_labels(numbers, self.seq)
        return self.data.batch(numbers[start:stop], self.seq, count)

    def _numbers(self, step: int) -> np.ndarray:
        """Return the rows of a global batch, int64 [global_batch]."""
        rows = np.arange(self.global_batch, dtype=np.int64)
        if self.data.fixed:
            return rows % self.data.count
        first = step * self.global_batch + self.rest
        return places(first + rows, self.data.count, self.seed)

    def state(self, step: int) -> dict:
        return {}

    def restore(self, step: int, state: dict) -> None:
        return None


class Part(NamedTuple):
    """Rows start..stop of each global batch. limit: global batches at most, None for all."""

    global_batch: int
    seq: int
    start: int
    stop: int
    limit: int | None = None


class HeldOutRows:
    """Every row once, in its order: what an evaluation reads."""

    def __init__(self, data: Numbered) -> None:
        self.data, self.name, self.vocab = data, data.name, data.vocab
        self.tokenizer = data.tokenizer

    def num_batches(self, global_batch: int, seq: int) -> int:
        return -(-self.data.count // global_batch)

    def batches(self, part: Part) -> Iterator[Batch]:
        for batch in range(self.num_batches(part.global_batch, part.seq))[: part.limit]:
            rows = np.arange(part.global_batch) + batch * part.global_batch
            count = self.data.num_labels(rows[rows < self.data.count], part.seq)
            yield self.data.batch(rows[part.start : part.stop], part.seq, count)
