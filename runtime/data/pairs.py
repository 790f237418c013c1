"""Pairs of a source and a target, which an encoder-decoder is trained on.

    shards of sources, shards of targets --pairs--> reader --batches--> a source beside the tokens

Document k of the sources and document k of the targets are pair k. A row is a pair: its source, up
to S ids; its target, up to S ids, as labels; and as tokens the target one place later, so that the
first label is told from the source alone.
"""

import hashlib
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from .batches import Batch
from .corpus import Corpus, check_tokenizers
from .errors import DataError
from .manifest import Manifest, read_manifest
from .numbered import Counted
from .samples import IGNORED, NOTHING, check_length
from .shards import open_shards


class Pairs(Counted, Protocol):
    """Pairs of ids by number."""

    def targets(self, numbers: np.ndarray, seq: int) -> np.ndarray:
        """Return the ids of each target, int64 [n], of pairs int64 [n]; at most `seq` each."""
        ...

    def read(self, number: int, seq: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a pair's source and target, int64, the first `seq` ids of each."""
        ...


class Documents:
    """The documents of a folder of shards, each with the id that ends it."""

    def __init__(self, folder: Path) -> None:
        self.corpus, manifest = open_shards(folder), read_manifest(folder)
        _check_whole(folder, manifest)
        self.bounds = np.concatenate([np.zeros(1, np.int64), _ends(folder, manifest)])

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def sizes(self, numbers: np.ndarray) -> np.ndarray:
        """Return the ids of each of the documents, int64 [n]."""
        return self.bounds[numbers + 1] - self.bounds[numbers]

    def read(self, number: int, seq: int) -> np.ndarray:
        start, stop = self.bounds[number : number + 2]
        return self.corpus.read(start, min(stop, start + seq))


def _check_whole(folder: Path, manifest: Manifest) -> None:
    """Raise DataError where a document was passed over, as those behind it have moved up."""
    if lost := manifest.broken + manifest.empty:
        raise DataError(
            f"{folder} passed over {lost} of {manifest.documents + lost} documents, so that those "
            "behind them are of other pairs; remove these pairs from the text and tokenize again"
        )


def _ends(folder: Path, manifest: Manifest) -> np.ndarray:
    """Return the place behind each document, int64, counted from the first shard."""
    firsts = accumulate((shard.tokens for shard in manifest.shards), initial=0)
    ends = [
        np.fromfile(folder / f"{shard.name}.ends", "<u8").astype(np.int64) + first
        for shard, first in zip(manifest.shards, firsts, strict=False)
    ]
    return np.concatenate(ends)


class FolderPairs:
    """`pairs:DIR`: the documents of DIR/source and of DIR/target, folders of shards.

    Raises DataError where one cannot be read, the two are not of one tokenizer, or they hold
    other numbers of documents.
    """

    fixed = False

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._source, self._target = Documents(folder / "source"), Documents(folder / "target")
        both = self._source.corpus, self._target.corpus
        self.tokenizer = check_tokenizers(both)
        self.vocab = max(corpus.vocab for corpus in both)
        self.identity = hashlib.sha256("\n".join(c.identity for c in both).encode()).hexdigest()
        self.count = len(self._target)
        if len(self._source) != self.count or not self.count:
            raise DataError(
                f"{name} has {len(self._source)} sources and {self.count} targets; document k of "
                "each is pair k, so tokenize as many of both"
            )

    def targets(self, numbers: np.ndarray, seq: int) -> np.ndarray:
        return np.minimum(self._target.sizes(numbers), seq)

    def read(self, number: int, seq: int) -> tuple[np.ndarray, np.ndarray]:
        return self._source.read(number, seq), self._target.read(number, seq)


class DrawnPairs:
    """Pairs of S and S ids of a corpus without documents, each id of it in one pair."""

    def __init__(self, corpus: Corpus, seq: int) -> None:
        check_length(corpus, 2 * seq, f"one source and one target of {seq}")
        self._corpus, self.count = corpus, corpus.length // (2 * seq)
        self.name, self.vocab, self.fixed = corpus.name, corpus.vocab, corpus.fixed
        self.tokenizer = corpus.tokenizer

    @cached_property
    def identity(self) -> str:
        return hashlib.sha256(f"pairs of {self._corpus.identity}".encode()).hexdigest()

    def targets(self, numbers: np.ndarray, seq: int) -> np.ndarray:
        return np.full(len(numbers), seq, np.int64)

    def read(self, number: int, seq: int) -> tuple[np.ndarray, np.ndarray]:
        both = self._corpus.read(2 * seq * number, 2 * seq * (number + 1))
        return both[:seq], both[seq:]


class PairRows:
    """Pairs as rows of one length."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs, self.name, self.vocab, self.count = pairs, pairs.name, pairs.vocab, pairs.count
        self.identity, self.tokenizer, self.fixed = pairs.identity, pairs.tokenizer, pairs.fixed

    def num_labels(self, numbers: np.ndarray, seq: int) -> int:
        return int(self.pairs.targets(numbers, seq).sum())

    def batch(self, numbers: np.ndarray, seq: int, label_count: int) -> Batch:
        shape = len(numbers), seq
        source, tokens = np.full(shape, NOTHING, np.int64), np.full(shape, NOTHING, np.int64)
        labels = np.full(shape, IGNORED, np.int64)
        for row, number in enumerate(numbers.tolist()):
            own, target = self.pairs.read(min(number, self.count - 1), seq)
            source[row, : len(own)] = own
            if number < self.count:
                labels[row, : len(target)] = target
                tokens[row, 1 : len(target)] = target[:-1]
        first, second, third = (torch.from_numpy(part) for part in (tokens, labels, source))
        return Batch(first, second, label_count, {"source": third})
