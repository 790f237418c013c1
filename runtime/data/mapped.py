"""Tokens in a file that is mapped into memory.

Reading behind the end of a mapped file raises nothing: the system ends the process by SIGBUS, which
names no file. So the file's size is asked for before every read, for about a microsecond.
"""

import os
from copy import copy
from pathlib import Path

import numpy as np

from .errors import DataError


class MappedTokens:
    """The tokens of a file, of `dtype`.

    Raises DataError where the file cannot be read, or has become shorter since it was opened.
    """

    def __init__(self, path: Path, dtype: np.dtype) -> None:
        self.path, self.dtype = path, dtype
        try:
            self._file = open(path, "rb")
            self._bytes = self._size()
            # An empty file cannot be mapped; the reader says how short it is.
            empty = np.empty(0, dtype)
            self._tokens = np.memmap(self._file, dtype, "r") if self._bytes else empty
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error

    def part(self, which: slice) -> "MappedTokens":
        """Some of the tokens, of the same file."""
        other = copy(self)
        other._tokens = self._tokens[which]
        return other

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, part: slice) -> np.ndarray:
        found = self._size()
        if found < self._bytes:
            raise DataError(
                f"{self.path} has {found} bytes, it had {self._bytes} when the run began; restore "
                "the file; a run that saved goes on with --resume auto"
            )
        return self._tokens[part]
