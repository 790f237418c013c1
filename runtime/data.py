"""Training data: a corpus is a stream of tokens, a reader cuts it into batches.

Note: three orders. A *window* is a piece of the stream, numbered as it lies there. A *sample* is a
window in the order of training: sample k of an epoch is window permute(k). A *row* is a sample's
place in the global batch: row r of step s is sample s * global_batch + r, counted over all epochs.
Everything follows from (seed, step, row), so any rank reads any rows with no state to save.
"""

import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

IGNORED = -100  # the label that counts for nothing, as in torch's cross entropy
HELD_OUT_ONE_IN = 20  # of the files, or of the bytes at the end of a single file


class DataError(ValueError):
    """Data that cannot feed the run; the message carries the numbers and the way out."""


@dataclass(frozen=True)
class ArrayCorpus:
    """A stream of tokens in [0, vocab), held in one array; uint8 where they are bytes."""

    name: str
    tokens: np.ndarray
    vocab: int = 256
    fixed: bool = False  # True: every step sees the same batch

    @property
    def length(self) -> int:
        return len(self.tokens)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens start..stop, int64; fewer where the stream ends before `stop`."""
        return self.tokens[start:stop].astype(np.int64)


@dataclass(frozen=True)
class SyntheticCorpus:
    """Uniform tokens, each a hash of (seed, offset): nothing is stored, any place can be read."""

    name: str
    vocab: int
    seed: int
    length: int
    fixed: bool = False

    def read(self, start: int, stop: int) -> np.ndarray:
        offsets = np.arange(start, min(stop, self.length), dtype=np.uint64)
        return (_hash(offsets, self.seed) % np.uint64(self.vocab)).astype(np.int64)


Corpus = ArrayCorpus | SyntheticCorpus


def open_corpus(name: str, split: str) -> Corpus:
    """The corpus called `name`, its `train` or its `held-out` part.

    demo                    the Python standard library's source, by file; a NUL ends each file
    file:PATH               raw bytes of one file; the last twentieth is held out
    random:VOCAB[:SEED]     uniform tokens without end
    fixed:VOCAB[:SEED]      uniform tokens, the same batch at every step
    Raises DataError for an unknown name or split, or a file that cannot be read.
    """
    if split not in ("train", "held-out"):
        raise DataError(f"unknown split {split!r}; choose from train, held-out")
    kind, _, rest = name.partition(":")
    if name == "demo":
        return ArrayCorpus(name, _standard_library(held_out=split == "held-out"))
    if kind == "file" and rest:
        return ArrayCorpus(name, _file_bytes(Path(rest), held_out=split == "held-out"))
    if kind in ("random", "fixed"):
        return _synthetic(name, kind, rest.split(":"), held_out=split == "held-out")
    raise DataError(f"unknown corpus {name!r}; give demo, file:PATH, random:VOCAB or fixed:VOCAB")


def _standard_library(held_out: bool) -> np.ndarray:
    """All .py files by name, without installed packages and tests.

    Tests are half of the bytes on some systems and not installed at all on others.
    """
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    wanted = (name for name in names if skipped.isdisjoint(name.split("/")))
    chosen = [name for name in wanted if _is_held_out(name) == held_out]
    if not chosen:
        raise DataError(f"no Python source below {root}; give --data file:PATH instead of demo")
    return np.frombuffer(b"".join((root / name).read_bytes() + b"\0" for name in chosen), np.uint8)


def _is_held_out(name: str) -> bool:
    """By the name alone: the same on every machine, whatever other files lie there."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "little") % HELD_OUT_ONE_IN == 0


def _file_bytes(path: Path, held_out: bool) -> np.ndarray:
    try:
        size = path.stat().st_size
        # An empty file cannot be mapped; the reader says how short it is.
        tokens = np.memmap(path, np.uint8, "r") if size else np.empty(0, np.uint8)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    cut = size - size // HELD_OUT_ONE_IN
    return tokens[cut:] if held_out else tokens[:cut]


def _synthetic(name: str, kind: str, numbers: list[str], held_out: bool) -> SyntheticCorpus:
    if len(numbers) > 2 or not all(number.isdecimal() for number in numbers):
        raise DataError(f"cannot read {name!r}; write {kind}:VOCAB or {kind}:VOCAB:SEED")
    vocab, seed = (int(number) for number in [*numbers, "0"][:2])
    if vocab < 1:
        raise DataError(f"{name!r} has a vocabulary of {vocab}; give at least 1")
    # The held-out part ends, since evaluation reads all of it; the other seed is another stream.
    length = 2**16 if held_out else 2**40
    return SyntheticCorpus(name, vocab, 2 * seed + held_out, length, fixed=kind == "fixed")


class Batch(NamedTuple):
    """Rows of a global batch. label_count: unignored labels of *all* its rows, the denominator."""

    tokens: torch.Tensor  # int64 [rows, seq]
    labels: torch.Tensor  # int64 [rows, seq], the next token or IGNORED
    label_count: int


class BatchReader:
    """Training batches of a corpus: shuffled anew each epoch, no window twice within one.

    vocab: the model's, checked against the corpus; None leaves it unchecked.
    Raises DataError when the corpus holds less than one window of seq + 1 tokens.
    """

    def __init__(
        self, corpus: Corpus, *, global_batch: int, seq: int, seed: int, vocab: int | None = None
    ) -> None:
        _check(corpus, vocab, needed=seq + 1, why=f"one sample of sequence length {seq}")
        self.corpus, self.global_batch, self.seq, self.seed = corpus, global_batch, seq, seed
        self.num_windows = corpus.length // (seq + 1)

    def batch(self, step: int) -> Batch:
        """The whole global batch of `step`."""
        return self.rows(step, 0, self.global_batch)

    def rows(self, step: int, start: int, stop: int) -> Batch:
        """Rows start..stop of the global batch of `step`; only they are read."""
        if not 0 <= start <= stop <= self.global_batch:
            raise DataError(f"rows {start}..{stop} of a global batch of {self.global_batch}")
        width = self.seq + 1
        windows = self._windows(step, start, stop)
        pieces = [self.corpus.read(window * width, (window + 1) * width) for window in windows]
        both = torch.from_numpy(np.stack(pieces) if pieces else np.empty((0, width), np.int64))
        return Batch(both[:, :-1].contiguous(), both[:, 1:].contiguous(), self.label_count(step))

    def label_count(self, step: int) -> int:
        """Unignored labels of the global batch of `step`: all of them, as every window is full."""
        return self.global_batch * self.seq

    def _windows(self, step: int, start: int, stop: int) -> list[int]:
        if self.corpus.fixed:
            return [row % self.num_windows for row in range(start, stop)]
        first = step * self.global_batch
        samples = np.arange(first + start, first + stop, dtype=np.uint64)
        epochs, places = np.divmod(samples, np.uint64(self.num_windows))
        return permute(places, self.num_windows, _hash(epochs, self.seed)).tolist()


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
    _check(corpus, vocab, needed=2, why="one token and its label")
    num_windows = -(-(corpus.length - 1) // seq)
    num_batches = -(-num_windows // global_batch)
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


def _check(corpus: Corpus, vocab: int | None, needed: int, why: str) -> None:
    if vocab is not None and corpus.vocab > vocab:
        raise DataError(
            f"corpus {corpus.name} has a vocabulary of {corpus.vocab}, the model one of {vocab}; "
            f"choose a model with at least {corpus.vocab}, or other data"
        )
    if corpus.length < needed:
        raise DataError(
            f"corpus {corpus.name} needs {needed} tokens for {why}, has {corpus.length}; "
            "shorten the sequence or give more data"
        )


def permute(places: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """Where a shuffle of range(size) puts each place; keys (uint64) choose the shuffle.

    A Feistel network is one to one on [0, 4^half); places that leave [0, size) walk on until they
    return, which keeps it one to one there (cycle walking, four turns on average at worst).
    """
    half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))
    mask = np.uint64((1 << int(half)) - 1)
    result = _feistel(places.astype(np.uint64), half, mask, keys)
    while (out := result >= np.uint64(size)).any():
        result[out] = _feistel(result[out], half, mask, keys[out])
    return result.astype(np.int64)


def _feistel(values: np.ndarray, half: np.uint64, mask: np.uint64, keys: np.ndarray) -> np.ndarray:
    left, right = values >> half, values & mask
    for turn in range(4):
        left, right = right, left ^ (_hash(right ^ keys, turn) & mask)
    return (left << half) | right


def _hash(values: np.ndarray, seed: int) -> np.ndarray:
    """A well mixed uint64 of each (value, seed): splitmix64's finisher over both."""
    return _mix(values ^ _mix(np.array([seed % 2**64], np.uint64)))


def _mix(values: np.ndarray) -> np.ndarray:
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
