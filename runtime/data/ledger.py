"""What of a tokenizing job is on disk already: `progress.json`, which outlives a kill."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ..atomic_file import write_atomic
from .errors import DataError
from .manifest import Shard, check_hash, check_size

FILE = "progress.json"


@dataclass(frozen=True)
class Position:
    """A place in the inputs: `tokens` ids behind the start of a chunk. line: lines before it."""

    input: int = 0
    start: int = 0
    line: int = 0
    tokens: int = 0
    broken: int = 0
    empty: int = 0


class Ledger:
    """The finished shards of a job, and where each ended.

    job: what decides the result, as JSON: two tables, the inputs, their stamps.
    """

    def __init__(self, folder: Path, job: list, dtype: str) -> None:
        self.folder, self.job, self.dtype = folder, job, dtype
        self.path = folder / FILE
        self.shards: list[Shard] = []
        self.after: list[Position] = []
        self._new = False  # nothing of an earlier call was found

    @property
    def where(self) -> Position:
        """Behind the last finished shard."""
        return self.after[-1] if self.after else Position()

    def add(self, shard: Shard, where: Position) -> None:
        """A shard is on disk, and ends before `where`."""
        self.shards.append(shard)
        self.after.append(where)
        self._record()

    def resume(self, say: Callable[[str], None]) -> None:
        """Keep the finished shards that verify, up to the first that does not.

        Raises DataError when the folder holds another job, or files of other origin.
        """
        if not self.path.exists():
            self._refuse_strangers()
            self._new = True
            self._record()
            return
        try:
            known = json.loads(self.path.read_text())
            shards = [Shard(**row) for row in known["shards"]]
            after = [Position(**row) for row in known["after"]]
            pairs, then = list(zip(shards, after, strict=True)), list(known["job"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{self.path} is damaged: {error}; remove {self.folder}") from None
        check_same(self.folder, then, self.job, "half-finished")
        for shard, place in pairs:
            try:
                check_shard(self.folder, shard, self.dtype)
            except DataError as error:
                say(f"writing from {shard.name} on anew: {error}")
                break
            self.shards.append(shard)
            self.after.append(place)
        say(f"going on behind {len(self.shards)} finished shards")

    def close(self) -> None:
        """The manifest is written: nothing is left to resume."""
        self.path.unlink(missing_ok=True)

    def drop_empty(self) -> None:
        """Remove the record of a new job that finished no shard, and its folder if it is empty."""
        if self._new and not self.shards:
            self.close()
            if not any(self.folder.iterdir()):
                self.folder.rmdir()

    def _refuse_strangers(self) -> None:
        others = sorted(path.name for path in self.folder.iterdir())
        if others:
            raise DataError(
                f"{self.folder} holds {len(others)} other files ({others[0]}, ...); "
                "give an empty folder"
            )

    def _record(self) -> None:
        rows = {
            "job": self.job,
            "shards": [asdict(shard) for shard in self.shards],
            "after": [asdict(place) for place in self.after],
        }
        write_atomic(self.path, json.dumps(rows, indent=1))


def check_shard(folder: Path, shard: Shard, dtype: str) -> None:
    """Both files are what was written. Raises DataError."""
    for name, size, digest in shard.files(dtype):
        check_size(folder / name, size)
        check_hash(folder / name, digest)


def check_same(folder: Path, then: list, now: list, what: str) -> None:
    """Raise DataError naming the first thing in which two jobs differ."""
    if then != now:
        raise DataError(
            f"{folder} holds a {what} job of other inputs or settings "
            f"({_difference(then, now)}); give another -o, or remove the folder"
        )


def _difference(then: list, now: list) -> str:
    """The first thing that differs, both ways. Parts are tables, inputs, or stamps."""
    old, new = next((a, b) for a, b in zip(then, now, strict=True) if a != b)
    if isinstance(old, dict):
        key = next(k for k in new if old.get(k) != new[k])
        return f"{key} {old.get(key)}, now {new[key]}"
    if len(old) != len(new):
        return f"{len(old)} inputs, now {len(new)}"
    one, other = next((a, b) for a, b in zip(old, new, strict=True) if a != b)
    if not isinstance(one, dict):
        return f"an input was written at {one} ns, now at {other} ns"
    return f"{one['name']} of {one['size']:,}, now {other['name']} of {other['size']:,}"
