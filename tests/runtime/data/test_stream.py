"""Streams of documents packed on the fly: no id lost, resumable at any step, errors named.

`Plain` has only the iterable's public face (__iter__, skip); `Stateful` adds what
datasets.IterableDataset adds (set_epoch, state_dict, load_state_dict). The last tests run where the
library itself is installed.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from meshwright.runtime.data import DataError, Prefetcher, open_reader
from meshwright.runtime.data.hub import Origin, _origin
from meshwright.runtime.data.stream import DocumentStream, StreamOptions, StreamReader
from meshwright.runtime.data.tokenize import Settings, tokenize
from meshwright.runtime.data.tokenizer import ByteTokenizer

TEXTS = [
    f"document {number} {'x' * (number * 7 % 23)}" if number % 5 else "" for number in range(23)
]


class Plain:
    """An iterable of rows that can step over the first ones."""

    def __init__(self, rows: list[object], start: int = 0) -> None:
        self.rows, self.start, self.opened = rows, start, 0

    def __iter__(self) -> Iterator[object]:
        for row in self.rows[self.start :]:
            self.opened += 1
            yield row

    def skip(self, count: int) -> "Plain":
        return type(self)(self.rows, self.start + count)


class Stateful:
    """Rows with the library's notion of state: of the iteration under way."""

    def __init__(self, rows: list[object]) -> None:
        self.rows, self.begin, self.place, self.read = rows, 0, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict:
        return {"place": self.place}

    def load_state_dict(self, state: dict) -> None:
        self.begin = state["place"]

    def __iter__(self) -> Iterator[object]:
        self.place = self.begin
        while self.place < len(self.rows):
            self.place += 1
            self.read += 1
            yield self.rows[self.place - 1]


KINDS = [Plain, Stateful]


def stream(kind: type, rows: list | None = None, **options: str) -> DocumentStream:
    source = kind([{"text": text} for text in TEXTS] if rows is None else rows)
    return DocumentStream(StreamOptions("fake", **options), source, Origin([]), ByteTokenizer())


def reader(kind: type) -> StreamReader:
    return StreamReader(stream(kind), global_batch=4, seq=9)


def epochs(count: int) -> bytes:
    return b"".join(text.encode() + b"\0" for text in TEXTS if text) * count


@pytest.mark.parametrize("kind", KINDS)
def test_every_document_once_an_epoch_without_a_gap(kind: type) -> None:
    expected = epochs(4)
    ids = stream(kind).take(len(expected))
    assert bytes(ids.astype(np.uint8)) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [1, 7, 20, 33])  # of the first to the third epoch
def test_a_resume_goes_on_with_the_same_rows(kind: type, step: int) -> None:
    whole = reader(kind)
    batches = [whole.rows(s, 0, 4).tokens.tolist() for s in range(step + 5)]
    first = reader(kind)
    for s in range(step):
        first.rows(s, 0, 4)
    state = json.loads(json.dumps(first.state(step)))
    resumed = reader(kind)
    resumed.restore(step, state)
    # Under another world: two ranks, each with half of the rows.
    for s in range(step, step + 5):
        assert resumed.rows(s, 2, 4).tokens.tolist() == batches[s][2:]
    other = reader(kind)
    other.restore(step, state)
    assert other.rows(step, 0, 2).tokens.tolist() == batches[step][:2]


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_is_of_the_step_not_of_what_was_read_ahead(kind: type) -> None:
    ahead, plain = reader(kind), reader(kind)
    batches = Prefetcher(ahead, 0, 4, depth=6)
    for step in range(9):
        assert batches.take(step).tokens.tolist() == plain.rows(step, 0, 4).tokens.tolist()
        assert ahead.state(step + 1) == plain.state(step + 1)
    batches.close()


@pytest.mark.parametrize("kind", KINDS)
def test_any_step_can_be_asked_for(kind: type) -> None:
    whole = reader(kind)
    batches = [whole.rows(step, 0, 4).tokens.tolist() for step in range(12)]
    jumping = reader(kind)
    for step in (5, 2, 11, 0):
        assert jumping.rows(step, 0, 4).tokens.tolist() == batches[step]


def test_a_resume_reads_only_what_lies_behind() -> None:
    first = reader(Stateful)
    for step in range(5):
        first.rows(step, 0, 4)
    state = first.state(5)
    rows = stream(Stateful)
    rows.rows.read = 0
    resumed = StreamReader(rows, global_batch=4, seq=9)
    resumed.restore(5, state)
    assert rows.rows.read == 1  # the document under way


def test_a_broken_row_is_named_or_skipped() -> None:
    rows = [{"text": "good"}, {"body": "bad"}, {"text": "also good"}]
    with pytest.raises(DataError, match='row 1: no field .text. among body; on_bad = "skip"'):
        stream(Plain, rows).take(20)
    skipping = stream(Plain, rows, on_bad="skip")
    assert (
        bytes(skipping.take(15).astype(np.uint8)) == b"good\0also good\0" and skipping.skipped == 1
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [[], [{"text": ""}]])
def test_a_stream_without_text_ends_with_an_error(kind: type, rows: list) -> None:
    with pytest.raises(DataError, match=f"holds 0 ids in {len(rows)} rows"):
        stream(kind, rows).take(1)


def test_a_position_of_another_kind_is_refused() -> None:
    good = reader(Plain).state(0)
    for state in ({}, {"shard": 4}, {**good, "offset": "x"}, {**good, "epoch": -1}):
        with pytest.raises(DataError, match="is of another kind"):
            reader(Plain).restore(3, state)


STREAM_FILES = {
    "no dataset": ("split = 'train'", "no dataset"),
    "key": ("dataset = 'x'\nfeild = 'text'", "feild"),
    "kind": ("dataset = 'x'\nsplit = 3", "split"),
    "policy": ("dataset = 'x'\non_bad = 'retry'", "on_bad is 'retry', expected stop or skip"),
    "no TOML": ("dataset =", "is not TOML"),
}


@pytest.mark.parametrize("name", STREAM_FILES)
def test_a_bad_stream_file_is_refused(name: str, tmp_path: Path) -> None:
    text, said = STREAM_FILES[name]
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(DataError) as caught:
        open_reader(f"hf-stream:{tmp_path / 's.toml'}", global_batch=1, seq=4, seed=0)
    assert said in str(caught.value)


def test_without_the_library_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"needs the library datasets: pip install"):
        open_reader("hf-stream:wikitext", global_batch=1, seq=4, seed=0)


# With the library


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of three jsonl files that the library loads by itself, without a network."""
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "rows"
    folder.mkdir()
    for part in range(3):
        rows = [json.dumps({"text": text}) + "\n" for text in TEXTS[part * 8 : part * 8 + 8]]
        (folder / f"{part}.jsonl").write_text("".join(rows))
    return folder


@pytest.mark.parametrize("workers", [1, 2])
def test_a_dataset_is_tokenized_each_document_once(
    dataset: Path, workers: int, tmp_path: Path
) -> None:
    manifest = tokenize([f"hf:{dataset}:train"], tmp_path / "out", Settings(), workers=workers)
    name = f"shards:{tmp_path / 'out'}"
    tokens = open_reader(name, global_batch=1, seq=manifest.tokens - 1, seed=0).rows(0, 0, 1)
    assert bytes([*tokens.tokens[0].tolist(), tokens.labels[0, -1].item()]) == epochs(1)
    assert manifest.empty == 5


def test_the_librarys_stream_resumes(dataset: Path) -> None:
    def opened():  # type: ignore[no-untyped-def]
        return open_reader(f"hf-stream:{dataset}:train", global_batch=4, seq=9, seed=0)

    whole = opened()
    batches = [whole.rows(step, 0, 4).tokens for step in range(30)]
    first = np.concatenate([batch.numpy().ravel() for batch in batches[:8]])
    assert len(first) == 8 * 36
    for step in (3, 14, 25):
        resumed = opened()
        resumed.restore(step, json.loads(json.dumps(whole.state(step))))
        assert resumed.rows(step, 0, 4).tokens.tolist() == batches[step].tolist()


def test_a_streams_identity_is_what_it_is_made_of(dataset: Path, tmp_path: Path) -> None:
    """Not where it lies; and a file that changed is another stream, of the same name and size."""

    def identity(folder: Path, *more: str) -> str:
        file = tmp_path / "stream.toml"
        file.write_text("\n".join([f'dataset = "{folder}"', *more]))
        return open_reader(f"hf-stream:{file}", global_batch=1, seq=4, seed=0).identity

    first = identity(dataset)
    assert identity(dataset) == first != identity(dataset, 'field = "body"')
    dataset.rename(dataset.parent / "moved")
    moved = dataset.parent / "moved"
    assert identity(moved) == first
    for folder, part in ((moved, "1.jsonl"), (moved, "2.jsonl")):
        before, text = identity(folder), (folder / part).read_text()
        (folder / part).write_text(text.replace("document", "DOCUMENT"))
        assert identity(folder) != before
    import datasets

    for name, file in (("one", "*"), ("two", "1*")):
        rows = datasets.load_dataset(str(moved), data_files=f"{file}.jsonl", split="train")
        rows.save_to_disk(tmp_path / name)
    one, two = (identity(tmp_path / name) for name in ("one", "two"))
    assert len({first, one, two}) == 3 and identity(tmp_path / "one") == one


class Files(list):
    """As the library's list of a split's files."""

    def __init__(self, files: list[str], tags: list[tuple[str, ...]]) -> None:
        super().__init__(files)
        self.origin_metadata = tags


def test_a_stream_of_the_hub_is_known_by_its_commit() -> None:
    def origin(files: list[str], *tags: str, config: str = "en") -> Origin:
        table = {"train": Files(files, [(tag,) for tag in tags])}
        settings = SimpleNamespace(name=config, data_files=table)
        return _origin("x/y", "train", SimpleNamespace(config=settings, hash="h"))

    commits = [letter * 40 for letter in "ab"]
    files = [[f"hf://datasets/x/y@{c}/en/{n}.json.gz" for n in range(2)] for c in commits]
    first = origin(files[0])
    assert first.commit == commits[0] and first == origin(files[0])
    others = [origin(files[1]), origin(files[0], config="de"), origin(files[0][::-1])]
    assert all(first.what != other.what for other in others)
    web = [origin(["https://host/0.jsonl"], tag) for tag in ("one", "two")]
    assert web[0].what != web[1].what and web[0].commit == ""
    assert origin([]).what == ["en", "x/y", "h"]
