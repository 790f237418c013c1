"""Corpora: streams of tokens that can be read at any place."""

import bisect
import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Protocol

import numpy as np

from .errors import DataError
from .mapped import MappedTokens
from .permutation import hash_of

BLOCK_BYTES, BLOCKS = 2**16, 64  # what a fingerprint reads


class Corpus(Protocol):
    """A stream of tokens in [0, vocab).

    identity: the same for the same tokens wherever they lie; a checkpoint keeps it. tokenizer:
    the hash of what made the tokens, "" where nothing did. fixed: every step sees the same batch.
    """

    @property
    def name(self) -> str: ...
    @property
    def vocab(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def identity(self) -> str: ...
    @property
    def tokenizer(self) -> str: ...
    @property
    def fixed(self) -> bool: ...

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens start..stop, int64; fewer where the stream ends before `stop`."""
        ...


@dataclass(frozen=True)
class ArrayCorpus:
    """A stream held in one array, or in a file that is mapped into memory."""

    name: str
    tokens: np.ndarray | MappedTokens
    vocab: int = 256
    tokenizer: str = ""
    known: str = ""  # the identity, where a manifest states it
    fixed: bool = False

    @property
    def length(self) -> int:
        return len(self.tokens)

    @cached_property
    def identity(self) -> str:
        return self.known or fingerprint(self.tokens)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.tokens[start:stop].astype(np.int64)


def fingerprint(tokens: np.ndarray | MappedTokens) -> str:
    """SHA-256 over the size and 64 evenly spaced blocks: quick on files of any size."""
    digest = hashlib.sha256(f"{tokens.dtype.str} {len(tokens)}".encode())
    count = BLOCK_BYTES // tokens.dtype.itemsize
    last = max(0, len(tokens) - count)
    for start in sorted({last * block // (BLOCKS - 1) for block in range(BLOCKS)}):
        digest.update(tokens[start : start + count].tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class SyntheticCorpus:
    """Uniform tokens, each a hash of (seed, offset): nothing is stored, any place can be read."""

    name: str
    vocab: int
    seed: int
    length: int
    fixed: bool = False
    tokenizer: str = ""

    @property
    def identity(self) -> str:
        text = f"{self.vocab} uniform tokens of seed {self.seed}"
        return hashlib.sha256(text.encode()).hexdigest()

    def read(self, start: int, stop: int) -> np.ndarray:
        offsets = np.arange(start, min(stop, self.length), dtype=np.uint64)
        return (hash_of(offsets, self.seed) % np.uint64(self.vocab)).astype(np.int64)


@dataclass(frozen=True)
class JoinedCorpus:
    """Corpora one behind the other: the shards of a folder, the held-out parts of a mixture.

    Raises DataError where two parts were made by different tokenizers.
    """

    name: str
    parts: tuple[Corpus, ...]
    known: str = ""
    fixed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        check_tokenizers(self.parts)

    @cached_property
    def ends(self) -> list[int]:
        return list(accumulate(part.length for part in self.parts))

    @property
    def vocab(self) -> int:
        return max(part.vocab for part in self.parts)

    @property
    def length(self) -> int:
        return self.ends[-1]

    @property
    def tokenizer(self) -> str:
        return self.parts[0].tokenizer

    @cached_property
    def identity(self) -> str:
        return self.known or joined_identity(self.parts)

    def read(self, start: int, stop: int) -> np.ndarray:
        pieces = []
        for index in range(bisect.bisect_right(self.ends, start), len(self.parts)):
            first = self.ends[index] - self.parts[index].length
            if first >= stop:
                break
            pieces.append(self.parts[index].read(max(0, start - first), stop - first))
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def joined_identity(parts: tuple[Corpus, ...], weights: tuple[int, ...] = ()) -> str:
    text = "\n".join([*(part.identity for part in parts), *map(str, weights)])
    return hashlib.sha256(text.encode()).hexdigest()


def check_tokenizers(parts: tuple[Corpus, ...]) -> None:
    """Tokens of two tokenizers mean different text. Raises DataError naming both."""
    made = [part for part in parts if part.tokenizer]
    for part in made[1:]:
        if part.tokenizer != made[0].tokenizer:
            raise DataError(
                f"{made[0].name} was tokenized with {made[0].tokenizer[:12]}, {part.name} with "
                f"{part.tokenizer[:12]}; tokenize both with one tokenizer"
            )
