"""Hugging Face `datasets` as a source of documents: the one file that imports the library."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from .documents import Broken, Piece, document
from .errors import DataError

CHUNK_ROWS = 1000
SPLIT = "train"
END_BYTES = 2**16  # at either end of a local file, for its identity


@dataclass(frozen=True)
class Origin:
    """Identity of a stream as JSON, the same wherever it lies; commit: of the hub, or ""."""

    what: list
    commit: str = ""


@dataclass(frozen=True)
class Rows:
    """A split of a dataset, read by row number from its memory-mapped files."""

    dataset: str
    split: str
    field: str
    name: str
    size: int
    stamp: int = 0

    def cut(self, start: int) -> int:
        return min(start + CHUNK_ROWS, self.size)

    def pieces(self, start: int, stop: int) -> Iterator[Piece | Broken]:
        rows = _rows(self.dataset, self.split)
        for at, row in enumerate(rows.select(range(start, stop))):
            yield document(at, row, self.field)

    def place(self, start: int, line: int, at: int) -> str:
        return f"{self.name} row {start + at}"


def parse(spec: str) -> tuple[str, str]:
    """(name or path, split) of `NAME_OR_PATH[:SPLIT]`; the split is train unless given."""
    name, _, split = spec.partition(":")
    if not name:
        raise DataError(
            f"{spec!r} names no dataset; write hf:NAME_OR_PATH or hf:NAME_OR_PATH:SPLIT"
        )
    return name, split or SPLIT


def open_rows(spec: str, field: str) -> Rows:
    """The input `hf:NAME_OR_PATH[:SPLIT]`. Raises DataError when it cannot be loaded."""
    name, split = parse(spec.removeprefix("hf:"))
    return Rows(name, split, field, spec, len(_rows(name, split)))


@lru_cache(maxsize=4)
def _rows(name: str, split: str) -> Any:
    return load(name, split)


def load(name: str, split: str) -> Any:
    """A split as a Dataset. Raises DataError."""
    with _loading(name, split) as datasets:
        saved = _saved(datasets, name, split)
        return datasets.load_dataset(name, split=split) if saved is None else saved


def stream(name: str, split: str, config: str = "", revision: str = "") -> tuple[Any, Origin]:
    """A split as an IterableDataset, and what it is made of.

    config, revision: as load_dataset takes them, "" for its own choice. Raises DataError.
    """
    with _loading(name, split) as datasets:
        saved = _saved(datasets, name, split)
        if saved is not None:
            return saved.to_iterable_dataset(), Origin([saved._fingerprint])
        builder = datasets.load_dataset_builder(name, config or None, revision=revision or None)
        return builder.as_streaming_dataset(split=split), _origin(name, split, builder)


@contextmanager
def _loading(name: str, split: str) -> Iterator[Any]:
    """The library; what it raises becomes a DataError."""
    try:
        import datasets
    except ImportError:
        raise DataError(
            f"{name} needs the library datasets: pip install 'meshwright[data]', "
            "or export it to jsonl"
        ) from None
    try:
        yield datasets
    except Exception as error:  # of the network, the file formats, or the hub: all the user's
        first = str(error).strip().partition("\n")[0]
        raise DataError(f"cannot load dataset {name}, split {split}: {first}") from None


def _saved(datasets: Any, name: str, split: str) -> Any:
    """What save_to_disk wrote, None for a folder or a name of another kind."""
    if not any((Path(name) / file).is_file() for file in ("state.json", "dataset_dict.json")):
        return None
    rows = datasets.load_from_disk(name)
    return rows[split] if isinstance(rows, dict) else rows


def _origin(name: str, split: str, builder: Any) -> Origin:
    """By the files in their order: the hub's carry the commit in their address, others on the net
    have an entity tag, and of those of this machine a glance says whether they changed."""
    files = (getattr(builder.config, "data_files", None) or {}).get(split, [])
    tags = getattr(files, "origin_metadata", [])
    what: list = [_glance(Path(file)) or str(file) for file in files]
    if any(isinstance(part, str) for part in what):
        what += map(list, tags)
    commits = sorted({c for file in files for c in re.findall(r"@([0-9a-f]{40})/", str(file))})
    return Origin([builder.config.name, *(what or [name, builder.hash])], " ".join(commits))


def _glance(file: Path) -> list | None:
    """Name, size, and a hash of both ends of a file of this machine; None for another."""
    if not file.is_file():
        return None
    size = file.stat().st_size
    with open(file, "rb") as opened:
        ends = opened.read(END_BYTES)
        opened.seek(max(0, size - END_BYTES))
        ends += opened.read(END_BYTES)
    return [file.name, size, hashlib.sha256(ends).hexdigest()]
