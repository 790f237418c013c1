"""Mixtures: shares hold at every prefix, each source keeps its own epochs, resumes are exact."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.runtime.data import ArrayCorpus, DataError, open_corpus, open_reader
from meshwright.runtime.data.mixture import (
    PERIOD,
    Mixture,
    Source,
    pattern,
    read_mixture,
    shares_of,
)
from meshwright.runtime.identity import TokenizerIdentity


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_every_prefix_is_less_than_one_sample_off(shares: list[int]) -> None:
    """In whole numbers: |count * total - n * share| < total for each source and prefix n."""
    total = sum(shares)
    sources, turns = pattern(shares)
    counts = [0] * len(shares)
    for n, (source, turn) in enumerate(zip(sources.tolist(), turns.tolist(), strict=True), 1):
        assert turn == counts[source]
        counts[source] += 1
        for count, share in zip(counts, shares, strict=True):
            assert abs(count * total - n * share) < total
    assert counts == shares


def numbered(name: str, first: int, windows: int) -> ArrayCorpus:
    """Windows of two tokens, each twice its own number."""
    return ArrayCorpus(name, np.repeat(np.arange(first, first + windows), 2), vocab=1000)


def mixture(seed: int = 5) -> Mixture:
    corpora = [numbered("a", 0, 7), numbered("b", 100, 50)]
    return Mixture("mix", [*corpora], [3, 1], width=2, seed=seed)


def test_sources_keep_their_own_epochs() -> None:
    ids = mixture().read(np.arange(112))[:, 0]
    first, second = ids[ids < 100], ids[ids >= 100]
    assert (len(first), len(second)) == (84, 28)
    for epoch in range(12):
        assert sorted(first[7 * epoch : 7 * epoch + 7]) == list(range(7))
    assert len(set(second.tolist())) == 28  # less than one epoch: none twice
    assert len({tuple(first[7 * e : 7 * e + 7]) for e in range(12)}) > 6


def test_any_sample_reads_alone() -> None:
    whole = mixture().read(np.arange(500))
    for start, stop in ((0, 1), (13, 14), (250, 500), (499, 500), (7, 7)):
        assert np.array_equal(mixture().read(np.arange(start, stop)), whole[start:stop])


def test_identity_follows_content_and_weights() -> None:
    corpora = [numbered("a", 0, 7), numbered("b", 100, 50)]
    one, same, shares, content = (
        Mixture("m", [*parts], share, width=2, seed=0).identity
        for parts, share in (
            (corpora, [3, 1]),
            ([numbered("elsewhere", 0, 7), corpora[1]], [3, 1]),
            (corpora, [2, 1]),
            ([numbered("a", 1, 7), corpora[1]], [3, 1]),
        )
    )
    assert one == same and len({one, shares, content}) == 3


WEIGHTS = [
    (["0.7", "0.2", "0.1"], [7, 2, 1]),
    (["2", "1"], [2, 1]),
    (["1e3", "250"], [4, 1]),
    (["1", "1", "1"], [1, 1, 1]),
]


@pytest.mark.parametrize(("weights", "shares"), WEIGHTS)
def test_weights_are_taken_as_they_are_written(weights: list[str], shares: list[int]) -> None:
    assert shares_of([Source("x", Fraction(weight)) for weight in weights]) == shares


def test_odd_weights_are_rounded_to_the_period() -> None:
    sources = [Source("x", Fraction(n)) for n in (1_234_567, 7_654_321, 333)]
    shares = shares_of(sources)
    assert sum(shares) == PERIOD
    total = sum(source.weight for source in sources)
    assert all(abs(n - PERIOD * s.weight / total) < 1 for n, s in zip(shares, sources, strict=True))
    with pytest.raises(DataError, match="less than 1 of 65536 samples"):
        shares_of([Source("x", Fraction(1)), Source("y", Fraction(10**7))])


FILES = {
    "no TOML": ("[[source", "is not TOML"),
    "empty": ("", "holds nothing"),
    "other table": ("[[sources]]\ndata = 'demo'", "holds sources"),
    "no data": ("[[source]]\nweight = 1", "source 1 has"),
    "two data": ("[[source]]\ndata = 'demo'\npath = 'x'", "source 1 has"),
    "own rows": ("[[source]]\ndata = 'py:mine:rows'", "own code are whole, and a mixture draws"),
    "a mixture": ("[[source]]\ndata = 'mix:b.toml'", "whose sources may be named here themselves"),
    "a stream": ("[[source]]\ndata = 'hf-stream:web'", "data tokenize writes it as shards"),
    "unknown": ("[[source]]\ndata = 'wiki'", "data wiki: unknown; a mixture takes demo, shards"),
    "key": ("[[source]]\ndata = 'demo'\nwieght = 2", "wieght"),
    "text": ("[[source]]\ndata = 'demo'\nweight = 'two'", "weight is 'two'"),
    "nothing": ("[[source]]\ndata = 'demo'\nweight = 0", "weight is 0, expected a number above 0"),
    "infinite": ("[[source]]\ndata = 'demo'\nweight = inf", "weight is inf"),
    "no number": ("[[source]]\ndata = 'demo'\nweight = nan", "weight is nan"),
    "flag": ("[[source]]\ndata = 'demo'\nweight = true", "weight is True"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_is_refused(name: str, tmp_path: Path) -> None:
    text, said = FILES[name]
    path = tmp_path / "mix.toml"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_mixture(path)
    assert str(path) in str(caught.value) and said in str(caught.value)


def test_a_file_mixes_what_it_names_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"a" * 400)
    (tmp_path / "b.bin").write_bytes(b"b" * 400)
    text = '[[source]]\ndata = "file:a.bin"\nweight = 0.75\n[[source]]\ndata = "file:b.bin"\n'
    (tmp_path / "mix.toml").write_text(text + "weight = 0.25")
    name = f"mix:{tmp_path / 'mix.toml'}"
    reader = open_reader(name, global_batch=40, seq=3, seed=0, vocab=256)
    counts = Counter(bytes(reader.rows(0, 0, 40).tokens[:, 0].tolist()))
    assert counts == {ord("a"): 30, ord("b"): 10}
    held_out = open_corpus(name, "held-out")
    assert bytes(held_out.read(0, 99).tolist()) == b"a" * 20 + b"b" * 20


def test_two_tokenizers_are_refused(tmp_path: Path) -> None:
    first = TokenizerIdentity("tokenizers", "a", "", "1" * 64, "v")
    second = replace(first, name="b", sha256="2" * 64, vocab_sha256="w")
    one, two = (
        ArrayCorpus(name, np.zeros(9, np.uint8), tokenizer=made)
        for name, made in (("one", first), ("two", second))
    )
    with pytest.raises(
        DataError, match=r"one was tokenized with a \(1{12}\), two with b \(2{12}\)"
    ):
        Mixture("m", [one, two], [1, 1], width=2, seed=0)
    same = replace(two, tokenizer=replace(second, vocab_sha256="v"))  # another file, its vocabulary
    assert Mixture("m", [one, same], [1, 1], width=2, seed=0).tokenizer == first
