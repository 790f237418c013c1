"""Pairs of a source and a target: each once an epoch, as rows of one length, or a clear refusal."""

import json
from operator import itemgetter
from pathlib import Path

import pytest
import torch

from meshwright.runtime.data import IGNORED, NOTHING, DataError, Part, open_held_out, open_reader
from meshwright.runtime.data.tokenize import Settings, tokenize

SEQ, COUNT = 6, 11
PAIRS = {"source": (SEQ,)}
# Pair k: a source of letters and a target of digits that both tell k, of lengths that differ.
SOURCES = [chr(97 + k) * (1 + k) for k in range(COUNT)]
TARGETS = [chr(48 + k) * (1 + 7 * k % 9) for k in range(COUNT)]


def write(folder: Path, texts: dict[str, list[str]], tokenizer: str = "bytes") -> str:
    """Tokenize lists of texts into folders of shards by name; return the data's name."""
    for name, documents in texts.items():
        lines = folder / f"{name}.jsonl"
        lines.write_text("\n".join(json.dumps({"text": text}) for text in documents))
        tokenize([str(lines)], folder / name, Settings(shard_tokens=16))
    return f"pairs:{folder}"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("data"), {"source": SOURCES, "target": TARGETS})


def reader_of(name: str, rows: int = 4, seed: int = 1, pairs: bool = True):
    return open_reader(
        name, global_batch=rows, seq=SEQ, seed=seed, vocab=256, reads=PAIRS if pairs else {}
    )


def expected(number: int) -> tuple[list[int], list[int], list[int]]:
    """By hand: the tokens, labels and source of a pair; a NUL ends a document of bytes."""
    source, target = (list(text[number].encode() + b"\0")[:SEQ] for text in (SOURCES, TARGETS))
    before = [NOTHING, *target[:-1]]
    return (
        before + [NOTHING] * (SEQ - len(before)),
        target + [IGNORED] * (SEQ - len(target)),
        source + [NOTHING] * (SEQ - len(source)),
    )


def numbers(batch) -> list[int]:
    return (batch.others["source"][:, 0] - 97).tolist()


def test_rows_are_the_pairs_cut_and_padded(pairs: str) -> None:
    batch = reader_of(pairs, COUNT).rows(0, 0, COUNT)
    for row, number in enumerate(numbers(batch)):
        parts = (batch.tokens[row], batch.labels[row], batch.others["source"][row])
        assert tuple(part.tolist() for part in parts) == expected(number)
    assert batch.label_count == int((batch.labels != IGNORED).sum())


def test_each_pair_comes_once_an_epoch_in_an_order_of_the_seed(pairs: str) -> None:
    seen = [n for step in range(COUNT) for n in numbers(reader_of(pairs).rows(step, 0, 4))]
    epochs = [seen[k * COUNT : (k + 1) * COUNT] for k in range(4)]
    assert all(sorted(epoch) == list(range(COUNT)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    other = reader_of(pairs, seed=2).rows(0, 0, 4)
    assert numbers(other) != seen[:4]


def test_batches_may_begin_behind_any_row(pairs: str) -> None:
    whole = [n for row in range(12) for n in numbers(reader_of(pairs, 1).rows(row, 0, 1))]
    moved = reader_of(pairs)
    moved.rest = 3
    assert numbers(moved.rows(2, 0, 4)) == whole[11:] + numbers(reader_of(pairs, 3).rows(4, 0, 3))


def test_ranks_read_the_rows_of_one_batch_and_its_count(pairs: str) -> None:
    whole = reader_of(pairs).rows(3, 0, 4)
    parts = [reader_of(pairs).rows(3, start, start + 2) for start in (0, 2)]
    for field in (itemgetter(0), itemgetter(1), lambda part: part.others["source"]):
        assert torch.equal(torch.cat([field(part) for part in parts]), field(whole))
    assert [part.label_count for part in parts] == [whole.label_count] * 2


def test_an_evaluation_reads_each_pair_once(pairs: str) -> None:
    held_out = open_held_out("demo", pairs, SEQ, PAIRS)
    batches = list(held_out.batches(Part(4, SEQ, 0, 4)))
    assert len(batches) == held_out.num_batches(4, SEQ) == 3
    counts = [int((batch.labels != IGNORED).sum()) for batch in batches]
    assert counts == [batch.label_count for batch in batches]
    assert sum(counts) == sum(min(len(text) + 1, SEQ) for text in TARGETS)
    rows = [n for batch in batches for n in numbers(batch)]
    assert rows == [*range(COUNT), COUNT - 1]  # the last row is filled up, without a label
    assert len(list(held_out.batches(Part(4, SEQ, 0, 4, limit=2)))) == 2


def test_drawn_pairs_are_full_rows() -> None:
    first, second = (reader_of("random:50").rows(step, 0, 4) for step in (0, 1))
    assert first.others["source"].min() >= 0
    assert first.labels.min() >= 0 and first.label_count == 4 * SEQ
    assert torch.equal(first.tokens[:, 1:], first.labels[:, :-1])
    assert not torch.equal(first.labels, second.labels)
    fixed = [reader_of("fixed:50").rows(step, 0, 4) for step in (0, 1)]
    assert torch.equal(fixed[0].labels, fixed[1].labels)


def test_data_without_sources_and_a_model_without_an_encoder_are_refused(pairs: str) -> None:
    with pytest.raises(DataError, match="demo holds no sources.* give pairs:DIR"):
        reader_of("demo")
    with pytest.raises(
        DataError, match="pairs of a source and a target, the model reads no source"
    ):
        reader_of(pairs, pairs=False)
    with pytest.raises(DataError, match="names no held-out part; give --eval-data pairs:DIR"):
        open_held_out(pairs, "", SEQ, PAIRS)


def test_documents_that_are_no_pairs_are_refused(tmp_path: Path) -> None:
    name = write(tmp_path, {"source": SOURCES, "target": TARGETS[:-1]})
    with pytest.raises(DataError, match=f"{COUNT} sources and {COUNT - 1} targets"):
        reader_of(name)
    empty = tmp_path / "empty"
    empty.mkdir()
    name = write(empty, {"source": ["a", "", "b"], "target": ["1", "2", "3"]})
    with pytest.raises(DataError, match="passed over 1 of 3 documents"):
        reader_of(name)
