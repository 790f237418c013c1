"""Tokenize: the same bytes for any workers and after any kill; broken documents are named."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from meshwright.runtime.data import DataError, open_corpus
from meshwright.runtime.data.manifest import read_manifest
from meshwright.runtime.data.shards import verify
from meshwright.runtime.data.tokenize import Settings, tokenize
from meshwright.runtime.data.tokenizer import load_tokenizer

SHARD_TOKENS = 100_000


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: a jsonl of several chunks, a text of several chunks, a short text."""
    folder = tmp_path_factory.mktemp("inputs")
    draw = random.Random(1)
    rows = [{"text": f"{n} " + "wort " * draw.randint(0, 60)} for n in range(20_000)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "b.txt").write_text("Gr\u00f6\u00dfe und Ma\u00df\n" * 100_000)
    (folder / "c").mkdir()
    (folder / "c" / "short.txt").write_text("short")
    return folder


def documents(inputs: Path) -> list[bytes]:
    """What the shards must hold, read in the plainest way."""
    rows = [json.loads(line) for line in (inputs / "a.jsonl").read_text().splitlines()]
    found = [row["text"].encode() for row in rows]
    return [*found, (inputs / "b.txt").read_bytes(), (inputs / "c" / "short.txt").read_bytes()]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def whole(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shards of an undisturbed run of one worker."""
    folder = tmp_path_factory.mktemp("whole") / "shards"
    tokenize([str(inputs)], folder, Settings(shard_tokens=SHARD_TOKENS))
    return folder


def test_shards_hold_the_documents_in_order(inputs: Path, whole: Path) -> None:
    expected = b"".join(text + b"\0" for text in documents(inputs))
    manifest = verify(whole)
    corpus = open_corpus(f"shards:{whole}", "train")
    assert bytes(corpus.read(0, corpus.length).astype(np.uint8)) == expected
    assert (manifest.dtype, manifest.vocab_size, manifest.documents) == ("uint8", 256, 20_002)
    assert manifest.tokens == len(expected) == corpus.length
    assert {shard.tokens for shard in manifest.shards[:-1]} == {SHARD_TOKENS}
    ends = [
        first * SHARD_TOKENS + np.fromfile(whole / f"{shard.name}.ends", "<u8")
        for first, shard in enumerate(manifest.shards)
    ]
    lengths = np.diff(np.concatenate([[0], *ends]).astype(np.int64))
    assert lengths.tolist() == [len(text) + 1 for text in documents(inputs)]


def test_workers_change_no_byte(inputs: Path, whole: Path, tmp_path: Path) -> None:
    tokenize([str(inputs)], tmp_path / "out", Settings(shard_tokens=SHARD_TOKENS), workers=3)
    assert contents(tmp_path / "out") == contents(whole)


# A run whose process dies by SIGKILL while it publishes the shard named last.
KILLED = """
import os, signal, sys
from pathlib import Path
from meshwright.runtime.data import tokenize as module
finish = module.ShardWriter.finish
def dying(self):
    if self.number == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    return finish(self)
module.ShardWriter.finish = dying
module.tokenize(
    [sys.argv[1]], Path(sys.argv[2]), module.Settings(shard_tokens=int(sys.argv[4])), workers=2
)
"""


@pytest.fixture
def killed(inputs: Path, tmp_path: Path) -> Path:
    """What a run of two workers left behind that was killed at its sixth shard."""
    folder = tmp_path / "out"
    command = [sys.executable, "-c", KILLED, str(inputs), str(folder), "5", str(SHARD_TOKENS)]
    assert subprocess.run(command, timeout=120).returncode == -signal.SIGKILL
    assert (folder / "shard_00004.bin").exists() and (folder / "shard_00005.bin.part").exists()
    return folder


def test_a_killed_run_goes_on_to_the_same_bytes(inputs: Path, whole: Path, killed: Path) -> None:
    said: list[str] = []
    with pytest.raises(DataError, match="was not finished: run it again"):
        read_manifest(killed)
    kept = (killed / "shard_00002.bin").stat().st_mtime_ns
    tokenize([str(inputs)], killed, Settings(shard_tokens=SHARD_TOKENS), say=said.append)
    assert said == ["going on behind 5 finished shards"]
    assert (killed / "shard_00002.bin").stat().st_mtime_ns == kept
    assert contents(killed) == contents(whole)


def test_a_damaged_shard_of_a_killed_run_is_written_anew(
    inputs: Path, whole: Path, killed: Path
) -> None:
    damaged = bytearray((killed / "shard_00003.bin").read_bytes())
    damaged[77] ^= 1
    (killed / "shard_00003.bin").write_bytes(damaged)
    said: list[str] = []
    settings = Settings(shard_tokens=SHARD_TOKENS)
    tokenize([str(inputs)], killed, settings, workers=2, say=said.append)
    assert "shard_00003" in said[0] and "SHA-256" in said[0]
    assert said[1] == "going on behind 3 finished shards"
    assert contents(killed) == contents(whole)


def test_a_killed_run_refuses_other_settings(inputs: Path, killed: Path) -> None:
    with pytest.raises(DataError, match=r"shard_tokens 100000, now 50000.*another -o"):
        tokenize([str(inputs)], killed, Settings(shard_tokens=50_000))


def test_workers_end_with_a_killed_parent(inputs: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(inputs), str(tmp_path / "o"), "3", "100000"]
    parent = subprocess.Popen(command, start_new_session=True)
    assert parent.wait(timeout=120) == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while _alive(parent.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _alive(parent.pid)


def _alive(group: int) -> bool:
    """Whether the process group has a member that is not a zombie."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            return True
    return False


def test_a_finished_folder_is_left_as_it_is(inputs: Path, whole: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.iterdir()}
    said: list[str] = []
    tokenize([str(inputs)], whole, Settings(shard_tokens=SHARD_TOKENS), say=said.append)
    assert "finished already" in said[0]
    assert {path: path.stat().st_mtime_ns for path in whole.iterdir()} == before
    with pytest.raises(DataError, match="form auto, now text"):
        tokenize([str(inputs)], whole, Settings(shard_tokens=SHARD_TOKENS, form="text"))
    with pytest.raises(DataError, match="3 inputs, now 1"):
        tokenize([str(inputs / "b.txt")], whole, Settings(shard_tokens=SHARD_TOKENS))


def test_a_finished_folder_of_inputs_that_changed_is_refused(tmp_path: Path) -> None:
    """Name and size are the same; what lies in the folder stays."""
    changed, folder = tmp_path / "b.txt", tmp_path / "out"
    changed.write_text("what was there")
    tokenize([str(changed)], folder, Settings())
    before = contents(folder)
    changed.write_text("what is there.")
    os.utime(changed, ns=(0, 10**18))
    with pytest.raises(DataError, match=r"b\.txt as it was written at .*remove the folder"):
        tokenize([str(changed)], folder, Settings())
    assert contents(folder) == before


def test_a_manifest_without_stamps_is_read(tmp_path: Path) -> None:
    text, folder = tmp_path / "b.txt", tmp_path / "out"
    text.write_text("what was there")
    tokenize([str(text)], folder, Settings())
    rows = json.loads((folder / "manifest.json").read_text())
    del rows["inputs"][0]["stamp"]
    (folder / "manifest.json").write_text(json.dumps(rows))
    said: list[str] = []
    tokenize([str(text)], folder, Settings(), say=said.append)
    assert "finished already" in said[0]


# Broken documents

BROKEN = {
    "cut short": (b'{"text": "half', "not JSON"),
    "list": (b'["text"]', "an object was expected, not list"),
    "other field": (b'{"body": "x"}', "no field 'text' among body"),
    "number": (b'{"text": 7}', "field 'text' is int, not text"),
    "no UTF-8": (b'{"text": "\xff"}', "byte 10 of the line is no UTF-8"),
    "half a pair": (rb'{"text": "\ud800"}', "field 'text' has half a surrogate pair"),
    "nested": (b"[" * 100_000, "not JSON"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_broken_line_in_the_middle(name: str, workers: int, tmp_path: Path) -> None:
    line, why = BROKEN[name]
    path = tmp_path / "rows.jsonl"
    # The broken line lies behind the first chunk of a mebibyte, so its number is carried over.
    good = [json.dumps({"text": "good " * 40}).encode()] * 7000
    path.write_bytes(b"\n".join([*good, line, b"", *good[:10]]) + b"\n")
    with pytest.raises(DataError) as caught:
        tokenize([str(path)], tmp_path / "stopped", Settings(), workers=workers)
    assert f"rows.jsonl:7001: {why}" in str(caught.value) and "--on-bad skip" in str(caught.value)
    said: list[str] = []
    manifest = tokenize(
        [str(path)],
        tmp_path / "skipped",
        Settings(),
        workers=workers,
        on_bad="skip",
        say=said.append,
    )
    assert manifest.broken == 1 and manifest.documents == 7010
    assert len(said) == 1 and said[0].startswith(f"skipped {path}:7001: {why}")


def test_empty_documents_are_counted_and_leave_no_token(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": ""}\n\n{"text": "a"}\n')
    manifest = tokenize([str(path)], tmp_path / "out", Settings())
    assert (manifest.tokens, manifest.documents, manifest.empty) == (2, 1, 1)


def test_a_file_of_no_bytes_is_an_empty_document(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, text in (("a", "a"), ("b", ""), ("c", ""), ("d", "dd")):
        (tmp_path / "in" / f"{name}.txt").write_text(text)
    manifest = tokenize([str(tmp_path / "in")], tmp_path / "out", Settings())
    assert (manifest.tokens, manifest.documents, manifest.empty) == (5, 2, 2)


def test_inputs_without_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("")
    with pytest.raises(DataError, match="1 inputs hold 0 tokens"):
        tokenize([str(tmp_path / "in.txt")], tmp_path / "out", Settings())
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="hold 0 files"):
        tokenize([str(tmp_path / "folder")], tmp_path / "out2", Settings())
    (tmp_path / "rows.jsonl.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(DataError, match="is packed"):
        tokenize([str(tmp_path / "rows.jsonl.gz")], tmp_path / "out3", Settings())


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(DataError, match=r"1 other files \(thesis.tex, ...\)"):
        tokenize([str(tmp_path / "thesis.tex")], tmp_path, Settings())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_full_disk_says_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshwright.runtime.data import writer

    monkeypatch.setattr(writer, "open", lambda path, mode: open("/dev/full", mode), raising=False)
    (tmp_path / "in.txt").write_text("words " * 10_000)
    with pytest.raises(DataError, match=r"No space left on device; .* run the same command"):
        tokenize([str(tmp_path / "in.txt")], tmp_path / "out", Settings())


# Tokenizers of the library


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    """A small byte-pair tokenizer with an end token, trained here."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(["the cat and the dog and the bird"] * 9, trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_tokenizers_file_gives_its_ids_and_vocabulary(
    tokenizer_file: Path, workers: int, tmp_path: Path
) -> None:
    from tokenizers import Tokenizer

    plain = Tokenizer.from_file(str(tokenizer_file))
    rows = ["the dog", "a b\u00efrd"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    settings = Settings(tokenizer=str(tokenizer_file), end="<end>")
    manifest = tokenize([str(tmp_path / "in.jsonl")], tmp_path / "out", settings, workers=workers)
    end = plain.token_to_id("<end>")
    expected = [*plain.encode("the dog").ids, end, *plain.encode("a b\u00efrd").ids, end]
    ids = open_corpus(f"shards:{tmp_path / 'out'}", "train").read(0, 99).tolist()
    assert ids == expected
    assert manifest.vocab_size == max(plain.get_vocab().values()) + 1 and manifest.dtype == "uint16"


def test_a_document_is_neither_cut_nor_filled(tokenizer_file: Path, tmp_path: Path) -> None:
    """Whatever the file asks for: a model's batches are of one length, documents are not."""
    from tokenizers import Tokenizer

    plain = Tokenizer.from_file(str(tokenizer_file))
    odd = Tokenizer.from_file(str(tokenizer_file))
    odd.enable_truncation(4)
    odd.enable_padding(length=6)
    odd.save(str(tmp_path / "odd.json"))
    coder = load_tokenizer(str(tmp_path / "odd.json"), "none")
    for text in ("the", "the bird and the dog and the cat"):
        assert coder.encode(text).tolist() == plain.encode(text).ids


def test_the_end_of_a_document_is_never_guessed(tokenizer_file: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the dog")
    for end, words in (("", "does not say which token"), ("<stop>", "holds no token '<stop>'")):
        with pytest.raises(DataError, match=rf"{words}.*--eos TOKEN \(special tokens: <end>\)"):
            settings = Settings(tokenizer=str(tokenizer_file), end=end)
            tokenize([str(tmp_path / "in.txt")], tmp_path / "out", settings)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<end>"}}')
    named = tokenize(
        [str(tmp_path / "in.txt")], tmp_path / "named", Settings(tokenizer=str(tmp_path))
    )
    assert named.tokenizer["end"] == 0 and named.documents == 1
    none = Settings(tokenizer=str(tokenizer_file), end="none")
    assert tokenize([str(tmp_path / "in.txt")], tmp_path / "none", none).tokens == named.tokens - 1


def test_a_text_cut_in_pieces_is_one_document(tokenizer_file: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    text = "the cat and the bird\n" * 80_000  # two chunks
    (tmp_path / "in.txt").write_text(text)
    settings = Settings(tokenizer=str(tokenizer_file), end="<end>")
    manifest = tokenize([str(tmp_path / "in.txt")], tmp_path / "out", settings)
    expected = Tokenizer.from_file(str(tokenizer_file)).encode(text).ids
    corpus = open_corpus(f"shards:{tmp_path / 'out'}", "train")
    assert manifest.documents == 1 and corpus.length == len(expected) + 1
    assert np.array_equal(corpus.read(0, corpus.length)[:-1], expected)


def test_a_line_without_end_is_cut_between_characters(tokenizer_file: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a" + "\u00df" * 2_000_000)
    settings = Settings(tokenizer=str(tokenizer_file), end="<end>")
    manifest = tokenize([str(tmp_path / "in.txt")], tmp_path / "out", settings, on_bad="stop")
    assert manifest.broken == 0 and manifest.documents == 1


def test_text_that_is_no_utf8_is_named_by_its_byte(tokenizer_file: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"the \xff dog")
    settings = Settings(tokenizer=str(tokenizer_file), end="<end>")
    with pytest.raises(DataError, match="in.txt: byte 4: no UTF-8"):
        tokenize([str(tmp_path / "in.txt")], tmp_path / "out", settings)
    # To bytes nothing is broken.
    assert tokenize([str(tmp_path / "in.txt")], tmp_path / "bytes", Settings()).tokens == 10


@pytest.mark.parametrize("text", ["not JSON", "{}", '{"model": 3}'])
def test_a_file_that_is_no_tokenizer_is_refused(text: str, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "t.json").write_text(text)
    (tmp_path / "in.txt").write_text("the dog")
    with pytest.raises(DataError, match="t.json is no tokenizers file"):
        settings = Settings(tokenizer=str(tmp_path / "t.json"))
        tokenize([str(tmp_path / "in.txt")], tmp_path / "out", settings)
