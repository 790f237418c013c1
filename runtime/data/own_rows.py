"""Rows of tokens from a user's own code: `--data py:module:name`.

The name is of a function, or of a class that is made without arguments and then called: given
(index, length) it returns `length` tokens, the same for the same index in every process, from
whichever thread asks. If it has `__len__`, that is its number of rows: each is read once an epoch,
in an order that follows from the run's seed. Without `__len__`, sample k is row k, without end. Its
attribute `vocab`, if any, is above every token; `identity`, if any, is a text that changes with the
rows and replaces the hash of the first ones.
"""

import hashlib
from typing import Any

import numpy as np

from ..identity import TokenizerIdentity
from ..own_code import OwnCodeError, load_named, said_of
from .errors import DataError
from .samples import places

_PROBED = 16  # rows that are read at the start; their hash identifies the data


class OwnRows:
    """Samples of a user's own source; see the module.

    width: tokens of a row, seq + 1. vocab: the model's, None where it is not known. Raises
    DataError for a source that gives no such rows, or other ones when it is asked again.
    """

    tokenizer: TokenizerIdentity | None = None

    def __init__(self, name: str, source: Any, *, width: int, seed: int, vocab: int | None) -> None:
        self.name, self.source, self.width, self.seed = name, source, width, seed
        self.vocab = int(getattr(source, "vocab", vocab or 0))
        self.count = len(source) if hasattr(source, "__len__") else None
        if not callable(source) or self.count == 0:
            what = "has 0 rows" if callable(source) else f"is a {type(source).__name__}"
            raise DataError(f"{name} {what}; give a function of (index, length), or such a class")
        first = range(min(_PROBED, self.count or _PROBED))
        once, again = ([self._row(index) for index in first] for _ in range(2))
        changed = [n for n in first if not np.array_equal(once[n], again[n])]
        if changed:
            raise DataError(
                f"{name} gives row {changed[0]} other tokens when it is asked a second time; let "
                "them follow from the index alone, as every rank and a resume ask again"
            )
        self.identity = str(getattr(source, "identity", "")) or self._hash(once)

    def read(self, samples: np.ndarray) -> np.ndarray:
        """Tokens int64 [n, width] of samples int64 [n]."""
        rows = samples if self.count is None else places(samples, self.count, self.seed)
        found = [self._row(int(row)) for row in rows]
        return np.stack(found) if found else np.empty((0, self.width), np.int64)

    def _row(self, index: int) -> np.ndarray:
        try:
            row = np.asarray(self.source(index, self.width))
        except Exception as error:
            raise DataError(f"{self.name} failed at row {index}: {said_of(error)}") from error
        if row.dtype.kind not in "iu" or row.shape != (self.width,):
            raise DataError(
                f"{self.name} gave row {index} as {row.dtype} of shape {list(row.shape)}; return "
                f"{self.width} whole numbers, as many as were asked for (--seq and one more)"
            )
        low, high = int(row.min()), int(row.max())
        if low < 0 or (self.vocab and high >= self.vocab):
            raise DataError(
                f"{self.name} has token {low if low < 0 else high} in row {index}; tokens are 0 to "
                f"{self.vocab - 1} here"
            )
        return row.astype(np.int64)

    def _hash(self, rows: list[np.ndarray]) -> str:
        digest = hashlib.sha256(f"{self.count} {self.width}".encode())
        for row in rows:
            digest.update(row.tobytes())
        return digest.hexdigest()


def open_own_rows(name: str, *, width: int, seed: int, vocab: int | None) -> OwnRows:
    """Open `py:module:name`. Raises DataError where that is no source of rows."""
    try:
        source = load_named(name, "--data")
    except OwnCodeError as error:
        raise DataError(str(error)) from error
    return OwnRows(name, source, width=width, seed=seed, vocab=vocab)
