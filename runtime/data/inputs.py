"""What is tokenized: documents in text files, jsonl files and datasets, cut into chunks.

Where an input is cut depends on the input alone, so the result is the same for any number of
workers, and a run that was killed goes on at a chunk.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Protocol

from .documents import Broken, Piece, document
from .errors import DataError
from .hub import open_rows

CHUNK_BYTES = 2**20
SAMPLE_BYTES = 2**16  # from which a file is told to be text
MOST_UNDECODABLE = 0.2  # of these bytes, of a text; prose in Latin-1 has some 0.05, a PNG 0.4
JSONL_SUFFIXES = (".jsonl", ".ndjson", ".json")
PACKED_SUFFIXES = (".gz", ".zst", ".xz", ".bz2", ".zip", ".parquet", ".arrow")


class Input(Protocol):
    """size: in the input's own units, bytes or rows. stamp: differs once the input changed."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def stamp(self) -> int: ...

    def cut(self, start: int) -> int:
        """Return where the chunk that begins at `start` ends."""
        ...

    def pieces(self, start: int, stop: int) -> Iterator[Piece | Broken]:
        """Yield what lies in a chunk, each line once; places count from the chunk's start."""
        ...

    def place(self, start: int, line: int, at: int) -> str:
        """`at` of the chunk at `start`, before which lie `line` lines, as a message names it."""
        ...


@dataclass(frozen=True)
class TextFile:
    """A file is one document; a long one is read in pieces that end at line ends."""

    path: Path
    name: str
    size: int
    stamp: int

    def cut(self, start: int) -> int:
        stop = start + CHUNK_BYTES
        if stop >= self.size:
            return self.size
        with _open(self.path) as file:
            file.seek(stop)
            tail = file.readline(CHUNK_BYTES)
        if tail.endswith(b"\n"):
            return stop + len(tail)
        # A line without end is cut between two characters: UTF-8's later bytes are 10xxxxxx.
        inside = next((n for n, byte in enumerate(tail[:4]) if byte & 0xC0 != 0x80), 0)
        return stop + inside

    def pieces(self, start: int, stop: int) -> Iterator[Piece | Broken]:
        why = self._binary
        if not why:
            yield Piece(0, _read(self.path, start, stop), start == 0, stop == self.size)
        elif start == 0:
            yield Broken(0, why)

    @cached_property
    def _binary(self) -> str:
        """Why the file is no text, "" where it is."""
        data = _read(self.path, 0, min(self.size, SAMPLE_BYTES))
        share = undecodable(data) / max(1, len(data))
        if share <= MOST_UNDECODABLE:
            return ""
        return (
            f"{share:.1%} of the first {len(data):,} bytes are no UTF-8 or NUL, of a "
            f"text at most {MOST_UNDECODABLE:.0%}"
        )

    def place(self, start: int, line: int, at: int) -> str:
        return f"{self.path}: byte {start + at}"


@dataclass(frozen=True)
class JsonLines:
    """A line is one JSON object, its `field` a document; blank lines count for nothing."""

    path: Path
    name: str
    size: int
    stamp: int
    field: str

    def cut(self, start: int) -> int:
        stop = start + CHUNK_BYTES
        if stop >= self.size:
            return self.size
        with _open(self.path) as file:
            file.seek(stop)
            file.readline()
            return file.tell()

    def pieces(self, start: int, stop: int) -> Iterator[Piece | Broken]:
        lines = _read(self.path, start, stop).removesuffix(b"\n").split(b"\n")
        for number, line in enumerate(lines, 1):
            blank = Piece(number, "", ends=False)
            yield self._document(number, line) if line.strip() else blank

    def _document(self, number: int, line: bytes) -> Piece | Broken:
        try:
            row = json.loads(line.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            return Broken(number, f"byte {error.start} of the line is no UTF-8")
        except ValueError as error:
            return Broken(number, f"not JSON: {error}")
        except RecursionError:
            return Broken(number, "not JSON that can be read: nested too deep")
        return document(number, row, self.field)

    def place(self, start: int, line: int, at: int) -> str:
        return f"{self.path}:{line + at}"


def undecodable(data: bytes) -> int:
    """Return how many bytes are no UTF-8, or NUL, which text does not hold."""
    return len(data) - len(data.decode(errors="ignore").replace("\0", "").encode())


def open_inputs(specs: list[str], form: str, field: str) -> list[Input]:
    """The inputs that `specs` name: files, folders (all files below, by name), hf:NAME[:SPLIT].

    form: text, jsonl, or auto, which goes by the suffix. Raises DataError for what is not there.
    """
    found: list[Input] = []
    for spec in specs:
        if spec.startswith("hf:"):
            found.append(open_rows(spec, field))
            continue
        found += [_file(path, name, form, field) for path, name in _files(Path(spec))]
    if not found:
        raise DataError(f"{len(specs)} inputs hold 0 files: {', '.join(specs)}")
    return found


def _files(path: Path) -> list[tuple[Path, str]]:
    """(path, name) of each file; names do not depend on where the input lies."""
    if not path.is_dir():
        return [(path, path.name)]
    below = (p for p in path.rglob("*") if p.is_file())
    shown = [(p, p.relative_to(path).as_posix()) for p in below]
    return sorted((pair for pair in shown if not pair[1].startswith(".")), key=lambda pair: pair[1])


def _file(path: Path, name: str, form: str, field: str) -> Input:
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    if path.suffix in PACKED_SUFFIXES:
        raise DataError(f"{path} is packed ({path.suffix}); unpack it, or read it with hf:PATH")
    if form == "jsonl" or (form == "auto" and path.suffix in JSONL_SUFFIXES):
        return JsonLines(path, name, status.st_size, status.st_mtime_ns, field)
    return TextFile(path, name, status.st_size, status.st_mtime_ns)


def _open(path: Path) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def _read(path: Path, start: int, stop: int) -> bytes:
    with _open(path) as file:
        file.seek(start)
        data = file.read(stop - start)
    if len(data) != stop - start:
        raise DataError(f"{path} shrank below {stop} bytes while it was read; run again")
    return data
