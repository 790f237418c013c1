"""Shards as a corpus: samples under any plan and world size, and damage that is refused."""

import json
import shutil
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from meshwright.runtime.data import DataError, Prefetcher, Reader, open_corpus, open_reader
from meshwright.runtime.data.manifest import VERSION, Manifest, Shard, read_manifest
from meshwright.runtime.data.shards import describe, verify
from meshwright.runtime.data.tokenize import Settings, tokenize

SEQ, WINDOWS = 7, 31  # a window is eight tokens


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """31 windows of 8 bytes over shards of 100; each window begins with its own number."""
    folder = tmp_path_factory.mktemp("data")
    text = b"".join(bytes([number] + [100] * 7) for number in range(1, WINDOWS + 1))
    (folder / "in.txt").write_bytes(text)
    tokenize([str(folder / "in.txt")], folder / "shards", Settings(shard_tokens=100))
    return folder / "shards"


def reader_of(name: str, *, global_batch: int = 12, seed: int = 3) -> Reader:
    return open_reader(name, global_batch=global_batch, seq=SEQ, seed=seed, vocab=256)


def ids(tokens: torch.Tensor) -> list[int]:
    return tokens[:, 0].tolist()


def read_by(reader: Reader, steps: range, world: int) -> list[int]:
    """Sample ids in the global order, each of `world` ranks reading its own rows ahead."""
    rows = 12 // world
    ranks = [Prefetcher(reader, rank * rows, (rank + 1) * rows) for rank in range(world)]
    found = [i for step in steps for rank in ranks for i in ids(rank.take(step).tokens)]
    for rank in ranks:
        rank.close()
    return found


def test_no_sample_is_lost_or_repeated_when_the_world_changes(shards: Path) -> None:
    """Two epochs and more, by id: 12 rows a step by 4, then 1, then 3 and 12 ranks."""
    name, parts = f"shards:{shards}", [(0, 2, 4), (2, 3, 1), (3, 5, 3), (5, 6, 12)]
    # Each part has a reader of its own, as after a resume.
    seen = [
        i
        for first, last, world in parts
        for i in read_by(reader_of(name), range(first, last), world)
    ]
    assert seen == read_by(reader_of(name), range(6), 1)
    epochs = [seen[:WINDOWS], seen[WINDOWS : 2 * WINDOWS]]
    for epoch in epochs:
        assert Counter(epoch) == Counter(range(1, WINDOWS + 1))
    assert epochs[0] != epochs[1]


def test_windows_cross_shards(shards: Path) -> None:
    corpus = open_corpus(f"shards:{shards}", "train")
    assert len(read_manifest(shards).shards) == 3
    assert corpus.read(95, 106).tolist() == [100, *[13, *[100] * 7], 14, 100]
    assert corpus.read(0, 10**6).tolist() == corpus.read(0, corpus.length).tolist()
    assert corpus.read(corpus.length, corpus.length + 5).tolist() == []


def test_the_size_of_shards_changes_no_sample(shards: Path, tmp_path: Path) -> None:
    tokenize([str(shards.parent / "in.txt")], tmp_path / "one", Settings())
    for step in range(3):
        one, many = (
            reader_of(f"shards:{folder}").rows(step, 0, 12) for folder in (tmp_path / "one", shards)
        )
        assert torch.equal(one.tokens, many.tokens) and torch.equal(one.labels, many.labels)


def test_the_identity_follows_the_content_not_the_place(shards: Path, tmp_path: Path) -> None:
    shutil.copytree(shards, tmp_path / "copy")
    (tmp_path / "in.txt").write_text("something else altogether")
    tokenize([str(tmp_path / "in.txt")], tmp_path / "other", Settings())
    here, copy, other = (
        open_corpus(f"shards:{folder}", "train").identity
        for folder in (shards, tmp_path / "copy", tmp_path / "other")
    )
    assert here == copy != other


# Reading ahead


class Counting:
    """A reader that notes what it was asked for, and fails at step 5."""

    name, vocab, identity = "counting", 256, ""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def rows(self, step: int, start: int, stop: int):  # type: ignore[no-untyped-def]
        self.asked.append(step)
        if step == 5:
            raise DataError(f"step {step} cannot be read")
        return step

    def state(self, step: int) -> dict:
        return {}

    def restore(self, step: int, state: dict) -> None:
        return None


def test_prefetch_reads_ahead_in_order_and_anew_after_a_jump() -> None:
    reader = Counting()
    batches = Prefetcher(reader, 0, 1, depth=2)
    assert [batches.take(step) for step in (0, 1, 2)] == [0, 1, 2]
    assert reader.asked == sorted(reader.asked)
    assert [batches.take(step) for step in (1, 2)] == [1, 2]
    batches.close()


def test_nothing_is_read_while_the_reader_is_moved() -> None:
    """A stream has one place: a thread that read on would leave it between two steps."""

    class Moved(Counting):
        reading = moved = False

        def rows(self, step: int, start: int, stop: int) -> int:  # type: ignore[override]
            self.reading = True
            time.sleep(0.05)
            self.reading = False
            return step

        def restore(self, step: int, state: dict) -> None:
            assert not self.reading
            self.moved = True

    reader = Moved()
    batches = Prefetcher(reader, 0, 1)
    batches.take(0)
    time.sleep(0.01)
    assert reader.reading
    batches.restore(0, {})
    assert reader.moved and batches.take(0) == 0
    batches.close()


def test_prefetch_raises_in_the_step_that_cannot_be_read() -> None:
    batches = Prefetcher(Counting(), 0, 1, depth=4)
    assert [batches.take(step) for step in (3, 4)] == [3, 4]
    with pytest.raises(DataError, match="step 5 cannot be read"):
        batches.take(5)
    assert batches.take(6) == 6
    batches.close()


# Damage


@pytest.fixture
def copy(shards: Path, tmp_path: Path) -> Path:
    shutil.copytree(shards, tmp_path / "shards")
    return tmp_path / "shards"


def refusal(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        open_corpus(f"shards:{folder}", "train")
    return str(caught.value)


def test_a_truncated_shard_is_refused_with_both_sizes(copy: Path) -> None:
    path = copy / "shard_00001.bin"
    path.write_bytes(path.read_bytes()[:60])
    message = refusal(copy)
    assert "shard_00001.bin has 60 bytes, the manifest says 100" in message
    path.unlink()
    assert "cannot read" in refusal(copy) and "shard_00001.bin" in refusal(copy)


@pytest.mark.parametrize("kind", ["shards", "file"])
def test_a_file_that_gets_shorter_while_it_is_read_is_named(copy: Path, kind: str) -> None:
    """What is read here lies in the part that is left, in the file's first page: behind it this
    process would be killed by SIGBUS."""
    path = copy / "shard_00001.bin"
    name = f"shards:{copy}" if kind == "shards" else f"file:{path}"
    corpora = [open_corpus(name, "train")]
    corpora += [open_corpus(name, "held-out")] if kind == "file" else []
    assert all(len(corpus.read(0, 8)) for corpus in corpora)
    with open(path, "r+b") as file:
        file.truncate(60)
    for corpus in corpora:
        start = 100 if kind == "shards" else 0
        with pytest.raises(DataError, match="shard_00001.bin has 60 bytes, it had 100 when"):
            corpus.read(start, start + 4)
    if kind == "shards":
        assert len(corpora[0].read(0, 8)) == 8, "the other shards are whole"


def test_a_changed_byte_is_refused(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = copy / "shard_00001.bin"
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)
    assert "shard_00001.bin has changed: SHA-256" in refusal(copy)
    # A large folder is opened by its sizes alone; verify reads it all.
    monkeypatch.setattr("meshwright.runtime.data.shards.CHEAP_BYTES", 10)
    open_corpus(f"shards:{copy}", "train")
    with pytest.raises(DataError, match="shard_00001.bin has changed"):
        verify(copy)


MANIFESTS = {
    "no JSON": (lambda rows: "{", "is not JSON"),
    "list": (lambda rows: "[]", f"version None, expected '{VERSION}'"),
    "version": (lambda rows: {**rows, "version": "v9"}, "version 'v9'"),
    "dtype": (lambda rows: {**rows, "dtype": "float32"}, "dtype 'float32', expected one of uint8"),
    "vocabulary": (lambda rows: {**rows, "vocab_size": 257}, "vocab_size 257 does not fit uint8"),
    "sum": (lambda rows: {**rows, "tokens": 5}, "shards sum to 249 tokens, it says 5"),
    "missing": (lambda rows: {k: v for k, v in rows.items() if k != "dtype"}, "dtype"),
    "unknown": (lambda rows: {**rows, "colour": "red"}, "colour"),
    "kind": (lambda rows: {**rows, "vocab_size": "256"}, "is damaged"),
    "escape": (
        lambda rows: {**rows, "shards": [{**rows["shards"][0], "name": "../../etc/passwd"}]},
        "shard '../../etc/passwd'",
    ),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_damaged_manifest_is_refused(name: str, copy: Path) -> None:
    change, said = MANIFESTS[name]
    path = copy / "manifest.json"
    changed = change(json.loads(path.read_text()))
    path.write_text(changed if isinstance(changed, str) else json.dumps(changed))
    assert said in refusal(copy) and "manifest.json" in refusal(copy)


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    assert "make it with meshwright data tokenize" in refusal(tmp_path)
    assert "No such file" in refusal(tmp_path / "nowhere")


def test_large_ids_read_as_they_were_written(tmp_path: Path) -> None:
    ids = np.array([0, 70_000, 3], "<u4")
    ids.tofile(tmp_path / "shard_00000.bin")
    np.array([3], "<u8").tofile(tmp_path / "shard_00000.ends")
    from hashlib import sha256

    digests = [
        sha256((tmp_path / f"shard_00000.{k}").read_bytes()).hexdigest() for k in ("bin", "ends")
    ]
    tokenizer = {"name": "t", "sha256": "0" * 64, "end": 3}
    manifest = Manifest(
        "uint32", 70_001, 3, 1, tokenizer, [], {}, (Shard("shard_00000", 3, 1, *digests),)
    )
    (tmp_path / "manifest.json").write_text(manifest.text())
    assert read_manifest(tmp_path) == manifest
    assert open_corpus(f"shards:{tmp_path}", "train").read(0, 9).tolist() == [0, 70_000, 3]
    with pytest.raises(DataError, match="vocabulary of 70001, the model one of 256"):
        open_reader(f"shards:{tmp_path}", global_batch=1, seq=1, seed=0, vocab=256)


# Held-out data


def test_the_held_out_folder_is_read_by_its_name(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"names no held-out part; give --eval-data .*--held-out"):
        open_corpus(f"shards:{shards}", "held-out")
    (tmp_path / "in.txt").write_text("words")
    settings = Settings(held_out=str(shards))
    tokenize([str(tmp_path / "in.txt")], tmp_path / "out", settings)
    held_out = open_corpus(f"shards:{tmp_path / 'out'}", "held-out")
    assert held_out.identity == open_corpus(f"shards:{shards}", "train").identity


def test_held_out_data_of_another_tokenizer_is_refused(copy: Path, tmp_path: Path) -> None:
    rows = json.loads((copy / "manifest.json").read_text())
    rows["tokenizer"] = {"name": "other", "sha256": "f" * 64, "end": 0}
    (copy / "manifest.json").write_text(json.dumps(rows))
    (tmp_path / "in.txt").write_text("words")
    with pytest.raises(DataError, match=r"with other \(ffffffffffff\).*bytes \(.*with one"):
        settings = Settings(held_out=str(copy))
        tokenize([str(tmp_path / "in.txt")], tmp_path / "out", settings)


def test_describe_names_counts_and_hash(shards: Path) -> None:
    text = describe(shards)
    assert "249 tokens, 1 document\n" in text and "3 of 100 tokens, uint8" in text
    assert read_manifest(shards).identity in text
    assert "sizes and SHA-256 of all shards, as by meshwright data verify" in text


def test_describe_says_where_hashes_were_not_checked(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.runtime.data.shards.CHEAP_BYTES", 248)
    assert "sizes; the SHA-256 of so many bytes only by meshwright data" in describe(shards)
    monkeypatch.setattr("meshwright.runtime.data.shards.CHEAP_BYTES", 2**20)
    path = next(iter(sorted(shards.glob("*.bin"))))
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(DataError, match="has changed: SHA-256"):
        describe(shards)
