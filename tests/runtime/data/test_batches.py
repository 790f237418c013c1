"""Corpora and batches: the same samples for every plan, each once an epoch, and clear refusals."""

from pathlib import Path

import numpy as np
import pytest
import torch

from meshwright.runtime.data import (
    IGNORED,
    ArrayCorpus,
    DataError,
    builtin,
    eval_batches,
    num_eval_batches,
    open_corpus,
    permute,
    shuffled_reader,
)


def counting(length: int) -> ArrayCorpus:
    """A stream whose token at offset i is i, so that a batch shows where it was read."""
    return ArrayCorpus("counting", np.arange(length, dtype=np.int64), vocab=length)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 1000, 4096, 4097])
def test_permute_is_one_to_one(size: int) -> None:
    keys = np.full(size, 7, np.uint64)
    assert sorted(permute(np.arange(size), size, keys)) == list(range(size))


def test_permute_depends_on_the_key_and_leaves_few_places() -> None:
    places = np.arange(1000)
    first, second = (permute(places, 1000, np.full(1000, key, np.uint64)) for key in (1, 2))
    assert (first == second).sum() < 20 and (first == places).sum() < 20
    assert abs(np.corrcoef(places, first)[0, 1]) < 0.1


def test_the_demo_corpus_is_real_text_in_two_disjoint_parts() -> None:
    train, held_out = open_corpus("demo", "train"), open_corpus("demo", "held-out")
    assert train.vocab == 256 and train.length > 2_000_000
    assert 0.01 < held_out.length / train.length < 0.12
    assert b"import" in bytes(held_out.read(0, 200_000).astype(np.uint8))
    again = open_corpus("demo", "train")
    assert np.array_equal(train.read(0, train.length), again.read(0, again.length))


def test_the_demo_corpus_leaves_out_installed_packages_and_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [f"{folder}module{n}.py" for folder in ("", "json/", "json/deep/") for n in range(40)]
    left_out = ["site-packages/torch/a.py", "json/tests/a.py", "test/a.py", "json/notes.txt"]
    for name in (*kept, *left_out):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(builtin.sysconfig, "get_path", lambda _: str(tmp_path))
    parts = [open_corpus("demo", split) for split in ("train", "held-out")]
    names = [bytes(p.read(0, p.length).astype(np.uint8)).decode().split("\0")[:-1] for p in parts]
    assert names[1] and all(part == sorted(part) for part in names)
    assert sorted(sum(names, [])) == sorted(kept)


def test_an_epoch_takes_each_window_once_and_the_next_another_order() -> None:
    reader = shuffled_reader(counting(5 * 12 + 3), global_batch=4, seq=4, seed=1)
    assert reader.samples.num_windows == 12
    starts = [reader.batch(step).tokens[:, 0].tolist() for step in range(6)]
    first, second = sum(starts[:3], []), sum(starts[3:], [])
    assert sorted(first) == sorted(second) == list(range(0, 60, 5))
    assert first != second


def test_batches_may_begin_behind_any_row() -> None:
    sizes = {"seq": 4, "seed": 1}
    whole, moved = (shuffled_reader(counting(60), global_batch=n, **sizes) for n in (1, 4))
    moved.rest = 3
    expected = [whole.batch(row).tokens[0].tolist() for row in range(11, 15)]
    assert moved.batch(2).tokens.tolist() == expected


def test_a_batch_that_spans_two_epochs_repeats_nothing_within_either() -> None:
    reader = shuffled_reader(counting(5 * 7), global_batch=4, seq=4, seed=1)
    starts = sum((reader.batch(step).tokens[:, 0].tolist() for step in range(7)), [])
    for epoch in range(4):
        assert sorted(starts[epoch * 7 : epoch * 7 + 7]) == list(range(0, 35, 5))


def test_labels_are_the_next_tokens() -> None:
    batch = shuffled_reader(counting(100), global_batch=3, seq=4, seed=0).batch(0)
    assert batch.tokens.dtype == batch.labels.dtype == torch.int64
    assert batch.tokens.shape == batch.labels.shape == (3, 4)
    assert torch.equal(batch.labels, batch.tokens + 1)
    assert batch.label_count == 12 == (batch.labels != IGNORED).sum()


@pytest.mark.parametrize("name", ["demo", "random:97", "fixed:97:3"])
def test_rows_are_rows_of_the_batch_at_any_step_in_any_order(name: str) -> None:
    reader = shuffled_reader(open_corpus(name, "train"), global_batch=6, seq=16, seed=5)
    whole = reader.batch(10**6)
    for start, stop in ((4, 6), (0, 1), (1, 4), (2, 2)):
        part = reader.rows(10**6, start, stop)
        assert torch.equal(part.tokens, whole.tokens[start:stop])
        assert torch.equal(part.labels, whole.labels[start:stop])
        assert part.label_count == reader.label_count(10**6) == 96


def test_the_seed_chooses_the_order() -> None:
    one, same, other = (
        shuffled_reader(counting(10_000), global_batch=8, seq=4, seed=seed).batch(3).tokens
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_random_tokens_fill_the_vocabulary_and_change_with_step_and_seed() -> None:
    corpora = [open_corpus(name, "train") for name in ("random:10", "random:10:1")]
    readers = [shuffled_reader(corpus, global_batch=8, seq=64, seed=0) for corpus in corpora]
    batches = [readers[0].batch(0), readers[0].batch(1), readers[1].batch(0)]
    assert set(batches[0].tokens.flatten().tolist()) == set(range(10))
    assert not torch.equal(batches[0].tokens, batches[1].tokens)
    assert not torch.equal(batches[0].tokens, batches[2].tokens)


def test_fixed_gives_one_batch_for_all_steps_with_rows_that_differ() -> None:
    reader = shuffled_reader(open_corpus("fixed:50", "train"), global_batch=4, seq=32, seed=9)
    assert torch.equal(reader.batch(0).tokens, reader.batch(17).tokens)
    assert len({tuple(row) for row in reader.batch(0).tokens.tolist()}) == 4


def test_a_file_is_cut_at_its_last_twentieth(tmp_path: Path) -> None:
    path = tmp_path / "text.bin"
    path.write_bytes(bytes(range(200)))
    train, held_out = (open_corpus(f"file:{path}", split) for split in ("train", "held-out"))
    assert train.read(0, 500).tolist() == list(range(190))
    assert held_out.read(0, 500).tolist() == list(range(190, 200))


def test_evaluation_scores_each_token_once_and_pads_the_tail() -> None:
    batches = list(eval_batches(counting(27), global_batch=2, seq=5))
    assert [batch.label_count for batch in batches] == [10, 10, 6]
    labels = torch.cat([batch.labels for batch in batches]).flatten()
    assert labels[labels != IGNORED].tolist() == list(range(1, 27))
    assert all(batch.tokens.shape == (2, 5) for batch in batches)
    assert sum(int((batch.labels != IGNORED).sum()) for batch in batches) == 26


def test_evaluation_by_rows_carries_the_count_of_the_whole_batch() -> None:
    whole = list(eval_batches(counting(12), global_batch=4, seq=5))
    parts = [list(eval_batches(counting(12), global_batch=4, seq=5, start=2, stop=4))]
    assert [batch.label_count for batch in parts[0]] == [batch.label_count for batch in whole]
    assert torch.equal(parts[0][0].labels, whole[0].labels[2:4])
    # The last row holds no label at all: legal for a rank, as long as the batch holds one.
    assert (parts[0][0].labels[1] == IGNORED).all()


def test_evaluation_stops_at_the_limit() -> None:
    corpus = open_corpus("random:11", "held-out")
    assert len(list(eval_batches(corpus, global_batch=2, seq=8, limit=3))) == 3
    assert len(list(eval_batches(corpus, global_batch=2, seq=8))) == num_eval_batches(corpus, 2, 8)


@pytest.mark.parametrize(
    ("name", "split", "words"),
    [
        ("wiki", "train", ["'wiki'", "demo", "file:PATH"]),
        ("demo", "test", ["'test'", "held-out"]),
        ("file:", "train", ["'file:'", "file:PATH"]),
        ("file:/nowhere/at/all", "train", ["/nowhere/at/all", "No such file"]),
        ("random:", "train", ["'random:'", "random:VOCAB"]),
        ("random:a", "train", ["'random:a'", "random:VOCAB"]),
        ("fixed:1:2:3", "train", ["'fixed:1:2:3'", "fixed:VOCAB:SEED"]),
        ("random:0", "train", ["0", "at least 1"]),
    ],
)
def test_a_bad_name_is_refused_with_the_way_out(name: str, split: str, words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        open_corpus(name, split)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("size", [0, 10])
def test_a_file_shorter_than_a_sample_is_refused_with_both_numbers(
    tmp_path: Path, size: int
) -> None:
    path = tmp_path / "short.bin"
    path.write_bytes(b"x" * size)
    with pytest.raises(DataError, match=rf"needs 17 tokens .* has {size};"):
        shuffled_reader(open_corpus(f"file:{path}", "train"), global_batch=1, seq=16, seed=0)
    with pytest.raises(DataError, match="needs 2 tokens .* has 0;"):
        next(eval_batches(open_corpus(f"file:{path}", "held-out"), global_batch=1, seq=16))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read"):
        open_corpus(f"file:{tmp_path}", "train")


def test_a_vocabulary_larger_than_the_models_is_refused_with_both_numbers() -> None:
    corpus = open_corpus("random:300", "train")
    with pytest.raises(DataError, match=r"vocabulary of 300, the model one of 256"):
        shuffled_reader(corpus, global_batch=1, seq=4, seed=0, vocab=256)
    shuffled_reader(corpus, global_batch=1, seq=4, seed=0, vocab=300)


def test_rows_outside_the_batch_are_refused() -> None:
    reader = shuffled_reader(counting(100), global_batch=4, seq=4, seed=0)
    with pytest.raises(DataError, match=r"rows 2\.\.5 of a global batch of 4"):
        reader.rows(0, 2, 5)
