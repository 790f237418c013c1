"""Hugging Face `datasets` as a source of documents: the one file that imports the library."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from .errors import DataError
from .inputs import Broken, Piece, document

CHUNK_ROWS = 1000
SPLIT = "train"


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


def load(name: str, split: str, streaming: bool = False) -> Any:
    """A Dataset, or an IterableDataset when streaming. A folder that save_to_disk wrote, too."""
    try:
        import datasets
    except ImportError:
        raise DataError(
            f"{name} needs the library datasets: pip install 'meshwright[data]', "
            "or export it to jsonl"
        ) from None
    try:
        if _saved(Path(name)):
            rows = datasets.load_from_disk(name)
            rows = rows[split] if isinstance(rows, dict) else rows
            return rows.to_iterable_dataset() if streaming else rows
        return datasets.load_dataset(name, split=split, streaming=streaming)
    except (
        Exception
    ) as error:  # of the network, the file formats, or the hub: all the user's to see
        first = str(error).strip().partition("\n")[0]
        raise DataError(f"cannot load dataset {name}, split {split}: {first}") from None


def _saved(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))
