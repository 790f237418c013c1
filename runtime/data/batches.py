"""Readers: what a run asks for its batches, and the batches of an evaluation."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
import torch

from ..identity import TokenizerIdentity
from .corpus import Corpus
from .errors import DataError
from .samples import IGNORED, Fixed, Samples, Shuffled, check_length, check_vocab


class Batch(NamedTuple):
    """Rows of a global batch. label_count: unignored labels of *all* its rows, the denominator.

    Of pairs, tokens are NOTHING where no token of the target came before.
    """

    tokens: torch.Tensor  # int64 [rows, seq]
    labels: torch.Tensor  # int64 [rows, seq], the next token or IGNORED
    label_count: int
    # By role what else a model reads: of pairs a source, int64 [rows, seq], NOTHING behind its end;
    # of images the pixels, and the places of the tokens that stand for them, int64 [rows, n].
    others: Mapping[str, torch.Tensor] = MappingProxyType({})


class Reader(Protocol):
    """Global batches by step; a data-parallel rank asks for its own rows of each.

    identity: of the data, kept in checkpoints and compared on resume. tokenizer: what made the
    tokens, None where nothing did. state: JSON that lets
    `restore` go on before `step` without reading what came before; {} where the step says it all.
    rest: rows before the first batch.
    """

    rest: int

    @property
    def name(self) -> str: ...
    @property
    def vocab(self) -> int: ...
    @property
    def identity(self) -> str: ...
    @property
    def tokenizer(self) -> TokenizerIdentity | None: ...

    def rows(self, step: int, start: int, stop: int) -> Batch:
        """Rows start..stop of the global batch of `step`."""
        ...

    def state(self, step: int) -> dict: ...
    def restore(self, step: int, state: dict) -> None: ...


class BatchReader:
    """Batches of samples that can be read at any place; every label counts.

    vocab: the model's, checked against the data's; None leaves it unchecked.
    """

    def __init__(
        self, samples: Samples, *, global_batch: int, seq: int, vocab: int | None = None
    ) -> None:
        check_vocab(samples.name, samples.vocab, vocab)
        self.samples, self.global_batch, self.seq, self.rest = samples, global_batch, seq, 0
        self.name, self.vocab, self.identity = samples.name, samples.vocab, samples.identity
        self.tokenizer = samples.tokenizer

    def batch(self, step: int) -> Batch:
        """The whole global batch of `step`."""
        return self.rows(step, 0, self.global_batch)

    def rows(self, step: int, start: int, stop: int) -> Batch:
        """Rows start..stop of the global batch of `step`; only they are read."""
        check_rows(start, stop, self.global_batch)
        first = step * self.global_batch + self.rest
        both = self.samples.read(np.arange(first + start, first + stop, dtype=np.int64))
        return split_labels(both, self.label_count(step))

    def label_count(self, step: int) -> int:
        """Unignored labels of the global batch of `step`: all of them, as every window is full."""
        return self.global_batch * self.seq

    def state(self, step: int) -> dict:
        return {}

    def restore(self, step: int, state: dict) -> None:
        return None


def check_rows(start: int, stop: int, global_batch: int) -> None:
    if not 0 <= start <= stop <= global_batch:
        raise DataError(f"rows {start}..{stop} of a global batch of {global_batch}")


def split_labels(both: np.ndarray, label_count: int) -> Batch:
    """Windows int64 [rows, seq + 1] as tokens and the labels one further."""
    pair = torch.from_numpy(both)
    return Batch(pair[:, :-1].contiguous(), pair[:, 1:].contiguous(), label_count)


def shuffled_reader(
    corpus: Corpus, *, global_batch: int, seq: int, seed: int, vocab: int | None = None
) -> BatchReader:
    """Training batches of one corpus: shuffled anew each epoch, no window twice within one."""
    check_vocab(corpus.name, corpus.vocab, vocab)
    samples: Samples
    if corpus.fixed:
        samples = Fixed(corpus, width=seq + 1, count=global_batch)
    else:
        samples = Shuffled(corpus, width=seq + 1, seed=seed)
    return BatchReader(samples, global_batch=global_batch, seq=seq)


def num_eval_batches(corpus: Corpus, global_batch: int, seq: int) -> int:
    """Return the global batches that `eval_batches` makes of a corpus without a limit."""
    num_windows = -(-(corpus.length - 1) // seq)
    return -(-num_windows // global_batch)


def eval_batches(
    corpus: Corpus,
    *,
    global_batch: int,
    seq: int,
    start: int = 0,
    stop: int | None = None,
    limit: int | None = None,
    vocab: int | None = None,
) -> Iterator[Batch]:
    """Rows start..stop of each global batch over `corpus` in its own order.

    limit: batches at most. Every token but the stream's first is a label exactly once. The end is
    padded with ignored labels to the full shape, so rows may hold none; label_count is never 0.
    """
    check_vocab(corpus.name, corpus.vocab, vocab)
    check_length(corpus, 2, "one token and its label")
    num_batches = num_eval_batches(corpus, global_batch, seq)
    for batch in range(num_batches if limit is None else min(limit, num_batches)):
        first = batch * global_batch
        rows = range(first, first + global_batch)[start:stop]
        tokens = np.zeros((len(rows), seq), np.int64)
        labels = np.full((len(rows), seq), IGNORED, np.int64)
        for row, window in enumerate(rows):
            piece = corpus.read(window * seq, window * seq + seq + 1)
            tokens[row, : max(len(piece) - 1, 0)] = piece[:-1]
            labels[row, : max(len(piece) - 1, 0)] = piece[1:]
        count = min(global_batch * seq, corpus.length - 1 - first * seq)
        yield Batch(torch.from_numpy(tokens), torch.from_numpy(labels), count)
