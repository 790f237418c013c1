"""Samples: windows of a corpus in the order of training, without end."""

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from ..identity import TokenizerIdentity
from .corpus import Corpus
from .errors import DataError
from .permutation import hash_of, permute

IGNORED = -100  # the label that counts for nothing, as in torch's cross entropy
NOTHING = -1  # the id of a place where a source has ended, or no token came before


class Samples(Protocol):
    """A sequence of samples; sample k is the same whoever asks, under every plan."""

    @property
    def name(self) -> str: ...
    @property
    def vocab(self) -> int: ...
    @property
    def identity(self) -> str: ...
    @property
    def tokenizer(self) -> TokenizerIdentity | None: ...

    def read(self, samples: np.ndarray) -> np.ndarray:
        """Tokens int64 [n, width] of samples int64 [n]."""
        ...


def places(samples: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return the place of each sample among `count`: each once an epoch, in an order of (seed,
    epoch)."""
    epochs, within = np.divmod(samples.astype(np.uint64), np.uint64(count))
    return permute(within, count, hash_of(epochs, seed))


class Shuffled:
    """Every window of a corpus once an epoch, in an order of (seed, epoch).

    width: tokens of a window, seq + 1. What is left behind the last whole window is not read.
    Raises DataError when the corpus holds less than one window.
    """

    def __init__(self, corpus: Corpus, *, width: int, seed: int) -> None:
        check_length(corpus, width, f"one sample of sequence length {width - 1}")
        self.corpus, self.width, self.seed = corpus, width, seed
        self.name, self.vocab, self.identity = corpus.name, corpus.vocab, corpus.identity
        self.tokenizer = corpus.tokenizer
        self.num_windows = corpus.length // width

    def read(self, samples: np.ndarray) -> np.ndarray:
        windows = places(samples, self.num_windows, self.seed)
        return _rows(self.corpus, windows.tolist(), self.width)


class Fixed:
    """The same `count` windows again and again, for timing."""

    def __init__(self, corpus: Corpus, *, width: int, count: int) -> None:
        check_length(corpus, width, f"one sample of sequence length {width - 1}")
        self.corpus, self.width, self.count = corpus, width, count
        self.name, self.vocab, self.identity = corpus.name, corpus.vocab, corpus.identity
        self.tokenizer = corpus.tokenizer

    def read(self, samples: np.ndarray) -> np.ndarray:
        num_windows = self.corpus.length // self.width
        windows = (int(sample) % self.count % num_windows for sample in samples)
        return _rows(self.corpus, windows, self.width)


def _rows(corpus: Corpus, windows: Iterable[int], width: int) -> np.ndarray:
    pieces = [corpus.read(window * width, (window + 1) * width) for window in windows]
    return np.stack(pieces) if pieces else np.empty((0, width), np.int64)


def check_vocab(name: str, vocab: int, models: int | None) -> None:
    """Raise DataError when data holds ids that the model has no row for."""
    if models is not None and vocab > models:
        raise DataError(
            f"corpus {name} has a vocabulary of {vocab}, the model one of {models}; "
            f"choose a model with at least {vocab}, or other data"
        )


def check_length(corpus: Corpus, needed: int, why: str) -> None:
    if corpus.length < needed:
        raise DataError(
            f"corpus {corpus.name} needs {needed} tokens for {why}, has {corpus.length}; "
            "shorten the sequence or give more data"
        )
