"""Packing a Hugging Face stream into batches while training, for data that is not worth storing.

Documents come in the stream's own order, each once an epoch, and are packed without gaps. Every
data-parallel rank reads the whole stream and keeps its rows: the sequence of samples is then the
same under every plan, at the price of tokenizing on each rank. Tokenize to shards for a shuffle,
for random access, or where the tokenizer is slower than the training.

Note: why no rank reads a part only. A sample begins where the ids before it end, so its place is
known to those alone who tokenized all documents before it. The library's own division (`shard`,
`split_dataset_by_node`) gives each rank a stream of its own: the samples of a step then depend on
the number of ranks, and its state on one rank says nothing of another's place. A fixed number of
streams, some to each rank, would fix that, but not the epochs: steps draw from all streams alike,
so that a short one begins again, and its documents come twice, before a long one has come once.

The position is (epoch, document, ids of it that are used, the library's own state before it); it
goes into the checkpoint, so a resume reads nothing twice that the library can step over. What the
stream is made of (hub.Origin) goes into the data's identity: a resume on files that changed, or at
another commit of the hub, is refused.
"""

import hashlib
import json
import tomllib
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from . import hub
from .batches import Batch, check_rows, split_labels
from .documents import Broken, document
from .errors import DataError
from .samples import check_vocab
from .tokenizer import Tokenizer, load_tokenizer

KEPT = 64  # steps whose positions are known, more than any prefetch runs ahead


@dataclass(frozen=True)
class StreamOptions:
    """dataset: a name on the hub or a folder. config, revision: of the hub's dataset, "" for what
    it chooses. eos, tokenizer, field, on_bad: as of tokenize."""

    dataset: str
    split: str = hub.SPLIT
    config: str = ""
    revision: str = ""
    field: str = "text"
    tokenizer: str = "bytes"
    eos: str = ""
    on_bad: str = "stop"


@dataclass(frozen=True)
class Position:
    """A place before id `offset` of document `document`; source: the library's state there."""

    epoch: int = 0
    document: int = 0
    offset: int = 0
    source: dict | None = None


class DocumentStream:
    """The ids of a stream of documents, one behind the other, epoch after epoch.

    rows: iterable anew each epoch; of `datasets.IterableDataset` it uses set_epoch, state_dict and
    load_state_dict where they are, else skip.
    """

    def __init__(
        self, options: StreamOptions, rows: Any, origin: hub.Origin, tokenizer: Tokenizer
    ) -> None:
        self.options, self.rows, self.tokenizer = options, rows, tokenizer
        commit = f" at commit {origin.commit}" if origin.commit else ""
        self.name = f"hf-stream:{options.dataset}:{options.split}{commit}"
        what = [origin.what, options.split, options.field, tokenizer.identity.sha256, tokenizer.end]
        self.identity = hashlib.sha256(json.dumps(what).encode()).hexdigest()
        self.skipped = 0
        self._first = self._source()
        self.move(Position())

    def move(self, position: Position) -> None:
        """Go to a position."""
        self.at = replace(position, offset=0)
        self._ids = np.empty(0, np.int64)
        self._open(position)
        if position.offset:
            self._advance()
            self.at = position

    def take(self, count: int) -> np.ndarray:
        """The next `count` ids, int64."""
        parts = []
        while count:
            offset = self.at.offset
            if offset == len(self._ids):
                self._advance()
                continue
            parts.append(self._ids[offset : offset + count])
            count -= len(parts[-1])
            self.at = replace(self.at, offset=offset + len(parts[-1]))
        return np.concatenate(parts)

    def _source(self) -> dict | None:
        return self.rows.state_dict() if hasattr(self.rows, "state_dict") else None

    def _open(self, position: Position) -> None:
        """Begin to read at `position.document`."""
        rows = self.rows
        if hasattr(rows, "set_epoch"):
            rows.set_epoch(position.epoch)
        if hasattr(rows, "load_state_dict"):
            rows.load_state_dict(position.source or self._first)
        elif position.document:
            rows = rows.skip(position.document)
        self._rows, self._next = iter(rows), position.document
        self._fruitful = position.document > 0

    def _advance(self) -> None:
        """Read the next document that has ids."""
        while True:
            source = self._source()
            row = next(self._rows, None)
            if row is None:
                self._next_epoch()
                continue
            index, self._next = self._next, self._next + 1
            self._ids = self._encode(index, row)
            if len(self._ids):
                self._fruitful = True
                self.at = Position(self.at.epoch, index, 0, source)
                return

    def _next_epoch(self) -> None:
        if not self._fruitful:
            raise DataError(f"{self.name} holds 0 ids in {self._next} rows; give other data")
        self.at = Position(self.at.epoch + 1)
        self._open(self.at)

    def _encode(self, index: int, row: object) -> np.ndarray:
        piece = document(index, row, self.options.field)
        if isinstance(piece, Broken):
            if self.options.on_bad == "stop":
                raise DataError(
                    f'{self.name} row {index}: {piece.why}; on_bad = "skip" skips such rows'
                )
            self.skipped += 1
            return np.empty(0, np.int64)
        ids = self.tokenizer.encode(piece.text).astype(np.int64)
        end = self.tokenizer.end
        return ids if end is None or not len(ids) else np.append(ids, end)


class StreamReader:
    """Batches packed from a stream; steps that follow each other cost no second reading."""

    def __init__(
        self, stream: DocumentStream, *, global_batch: int, seq: int, vocab: int | None = None
    ) -> None:
        check_vocab(stream.name, stream.tokenizer.vocab_size, vocab)
        self.stream, self.global_batch, self.seq = stream, global_batch, seq
        self.name, self.identity = stream.name, stream.identity
        self.vocab = stream.tokenizer.vocab_size
        self.tokenizer = stream.tokenizer.identity
        self.rest = 0  # its position tells that, too
        self._step, self._before = 0, {0: Position()}

    def rows(self, step: int, start: int, stop: int) -> Batch:
        """Rows start..stop of the global batch of `step`; all of it is read."""
        check_rows(start, stop, self.global_batch)
        if step != self._step:
            self._seek(step)
        return split_labels(self._pack()[start:stop].copy(), self.global_batch * self.seq)

    def _pack(self) -> np.ndarray:
        width = self.seq + 1
        both = self.stream.take(self.global_batch * width).reshape(self.global_batch, width)
        self._step += 1
        self._before[self._step] = self.stream.at
        self._before.pop(self._step - KEPT, None)
        return both

    def _seek(self, step: int) -> None:
        """From the last position known before `step`, or from the beginning, read on to it."""
        known = max((s for s in self._before if s <= step), default=0)
        self.stream.move(self._before.get(known, Position()))
        self._step = known
        while self._step < step:
            self._pack()

    def state(self, step: int) -> dict:
        """The position before `step`, which the last batches reached."""
        return asdict(self._before[step])

    def restore(self, step: int, state: dict) -> None:
        """Go on at a position that `state` gave. Raises DataError for any other."""
        position = _position(state)
        if position is None:
            raise DataError(f"{self.name}: position {state} is of another kind of data")
        self._before = {step: position}
        self._seek(step)


def _position(state: dict) -> Position | None:
    """The position that a checkpoint's JSON states, None where it states no such thing."""
    if set(state) != {item.name for item in fields(Position)}:
        return None
    numbers = (state[name] for name in ("epoch", "document", "offset"))
    whole = all(type(number) is int and number >= 0 for number in numbers)
    return Position(**state) if whole and isinstance(state["source"], dict | None) else None


def stream_file(rest: str) -> bool:
    """Tell whether what follows `hf-stream:` names a file or folder of this machine."""
    return rest.endswith(".toml") or Path(rest.partition(":")[0]).exists()


def open_stream(rest: str) -> DocumentStream:
    """`NAME_OR_PATH[:SPLIT]`, bytes of the field "text"; or a TOML file of StreamOptions' fields.

    Raises DataError for options, data or a tokenizer that cannot be used.
    """
    options = _read(Path(rest)) if rest.endswith(".toml") else StreamOptions(*hub.parse(rest))
    tokenizer = load_tokenizer(options.tokenizer, options.eos)
    rows, origin = hub.stream(options.dataset, options.split, options.config, options.revision)
    return DocumentStream(options, rows, origin, tokenizer)


def _read(path: Path) -> StreamOptions:
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{path} is not TOML: {error}") from None
    known = [item.name for item in fields(StreamOptions)]
    wrong = [k for k, v in table.items() if k not in known or not isinstance(v, str)]
    if wrong or "dataset" not in table:
        raise DataError(
            f"{path}: {', '.join(wrong) or 'no dataset'}; give dataset and any of "
            f"{', '.join(known[1:])}, all text"
        )
    if table.get("on_bad", "stop") not in ("stop", "skip"):
        raise DataError(f"{path}: on_bad is {table['on_bad']!r}, expected stop or skip")
    return StreamOptions(**{key: _beside(path, key, value) for key, value in table.items()})


def _beside(path: Path, key: str, value: str) -> str:
    """Folders and files are named relative to the TOML file; names on the hub stay."""
    near = path.parent / value
    return str(near) if key in ("dataset", "tokenizer") and near.exists() else value
