"""Corpora: streams of tokens that can be read at any place."""

import bisect
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Protocol

import numpy as np

from ..identity import TokenizerIdentity
from .errors import DataError
from .mapped import MappedTokens
from .permutation import hash_of

BLOCK_BYTES, BLOCKS = 2**16, 64  # what a fingerprint reads


class Corpus(Protocol):
    """A stream of tokens in [0, vocab).

    identity: the same for the same tokens wherever they lie; a checkpoint keeps it. tokenizer:
    what made the tokens, None where nothing did. fixed: every step sees the same batch.
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
    def tokenizer(self) -> TokenizerIdentity | None: ...
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
    tokenizer: TokenizerIdentity | None = None
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
    tokenizer: TokenizerIdentity | None = None

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
    def tokenizer(self) -> TokenizerIdentity | None:
        return check_tokenizers(self.parts)

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


class Tokenized(Protocol):
    """A corpus, or a reader of one, as far as its tokenizer is asked for."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> TokenizerIdentity | None: ...


def check_tokenizers(parts: Sequence[Tokenized]) -> TokenizerIdentity | None:
    """The tokenizer of all parts that name one, as tokens of two mean different text.

    Raises DataError naming both.
    """
    name, first = "", None
    for part in parts:
        own = part.tokenizer
        if first is None:
            name, first = part.name, own
        elif own is not None and not first.same(own):
            raise DataError(
                f"{name} was tokenized with {first}, {part.name} with {own}; tokenize both with "
                "one tokenizer"
            )
    return first
