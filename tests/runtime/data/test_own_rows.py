"""Rows of a user's own code: the same global batch for whoever asks, or a refusal."""

import random
from pathlib import Path

import pytest
import torch

from meshwright.runtime.data import DataError, Reader, open_corpus, open_reader

CODE = """
import random

class Squares:
    vocab = 50

    def __len__(self):
        return 12

    def __call__(self, index, length):
        return [index, *((index + k * k) % 50 for k in range(1, length))]

def endless(index, length):
    return [(index + k) % 50 for k in range(length)]

def drawn(index, length):
    return [random.randrange(50) for _ in range(length)]

def short(index, length):
    return [1] * (length - 1)

def large(index, length):
    return [99] * length

def broken(index, length):
    return {}[index]

text = "tokens"
"""


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))


def opened(name: str, seed: int = 0) -> Reader:
    return open_reader(f"py:rows_code:{name}", global_batch=4, seq=6, seed=seed, vocab=64)


@pytest.mark.parametrize("name", ["Squares", "endless"])
def test_every_rank_and_a_resume_read_the_same_global_batch(name: str) -> None:
    whole = opened(name).rows(5, 0, 4)
    halves = [opened(name).rows(5, start, start + 2) for start in (0, 2)]
    assert torch.equal(torch.cat([half.tokens for half in halves]), whole.tokens)
    assert whole.label_count == 24 and torch.equal(whole.labels[:, :-1], whole.tokens[:, 1:])
    assert opened(name).identity == opened(name, seed=1).identity


def test_a_row_comes_once_an_epoch_in_an_order_of_the_seed() -> None:
    orders = [
        [
            int(row)
            for step in range(3)
            for row in opened("Squares", seed).rows(step, 0, 4).tokens[:, 0]
        ]
        for seed in (0, 1)
    ]
    assert all(sorted(order) == list(range(12)) for order in orders) and orders[0] != orders[1]
    assert opened("endless").rows(3, 0, 4).tokens[:, 0].tolist() == [12, 13, 14, 15]


REFUSED = {
    "drawn": "gives row 0 other tokens when it is asked a second time",
    "short": r"gave row 0 as int64 of shape \[6\]; return 7 whole numbers",
    "large": "has token 99 in row 0; tokens are 0 to 63 here",
    "broken": r"failed at row 0: KeyError: 0 \(.*rows_code.py:\d+\)",
    "text": "is a str; give a function of",
    "larg": "rows_code has no 'larg'; did you mean large",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_gives_no_such_rows_is_refused(name: str) -> None:
    random.seed(0)
    with pytest.raises(DataError, match=REFUSED[name]):
        opened(name)


def test_it_has_no_held_out_part() -> None:
    with pytest.raises(DataError, match="py:rows_code:endless names no held-out part; give --eval"):
        open_corpus("py:rows_code:endless", "held-out")
