"""Shards, written one behind the other; each is whole on disk before the next begins."""

import hashlib
import os
from pathlib import Path

import numpy as np

from .errors import DataError
from .manifest import END_BYTES, Shard


class ShardWriter:
    """Cuts a stream of ids into shards of exactly `shard_tokens`, the last one shorter.

    add() takes ids and the places of document ends among them; a full shard is handed back.
    """

    def __init__(self, folder: Path, shard_tokens: int, first: int) -> None:
        self.folder, self.shard_tokens, self.number = folder, shard_tokens, first
        self._begin()

    def _begin(self) -> None:
        self.name = f"shard_{self.number:05d}"
        self.tokens, self.ends = 0, np.empty(0, np.uint64)
        self._digest = hashlib.sha256()
        self._file = open(self.folder / f"{self.name}.bin.part", "wb")

    @property
    def room(self) -> int:
        return self.shard_tokens - self.tokens

    def add(self, ids: np.ndarray, ends: np.ndarray) -> None:
        """Add at most `room` ids; ends: int, places behind documents' last ids, from the first."""
        data = ids.tobytes()
        self._file.write(data)
        self._digest.update(data)
        self.ends = np.concatenate([self.ends, (ends + self.tokens).astype(np.uint64)])
        self.tokens += len(ids)

    def finish(self) -> Shard:
        """Close the shard under its final name and begin the next."""
        ends = self.ends.astype("<u8").tobytes()
        _sync(self._file)
        with open(self.folder / f"{self.name}.ends.part", "wb") as file:
            file.write(ends)
            _sync(file)
        for kind in ("bin", "ends"):
            final = self.folder / f"{self.name}.{kind}"
            os.replace(final.with_name(final.name + ".part"), final)
        digests = self._digest.hexdigest(), hashlib.sha256(ends).hexdigest()
        shard = Shard(self.name, self.tokens, len(ends) // END_BYTES, *digests)
        self.number += 1
        self._begin()
        return shard

    def close(self) -> None:
        """Drop what is not finished."""
        self._file.close()
        (self.folder / f"{self.name}.bin.part").unlink(missing_ok=True)


def _sync(file) -> None:  # type: ignore[no-untyped-def]
    file.flush()
    os.fsync(file.fileno())
    file.close()


def no_room(folder: Path, error: OSError) -> DataError:
    return DataError(
        f"cannot write to {folder}: {error.strerror}; put that right (free some space, say) and "
        "run the same command again: finished shards are kept"
    )
