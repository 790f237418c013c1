"""Modules that take rows of a multiple of some tokens, or want a length as a number: captured once,
and under every plan as plain PyTorch, at every length."""

from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from equivalence.pool import Pool
from equivalence.stock_runs import CASES, check_by_torch, planned, tokens_of
from torch import Tensor, nn

from meshwright.api import kept
from meshwright.api.capturing import captured
from meshwright.ir.errors import SizeError
from meshwright.ir.lengths import Lengths
from meshwright.ir.traced import Traced
from meshwright.ir.traced_text import format_traced, parse_traced
from meshwright.models import ModelSource
from meshwright.proof.prove import Subject, prove

VOCAB, DIM, STEPS, RATE = 32, 12, 2, 0.3


class Around(nn.Module):
    """What a test is about, between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB)
        self.mix = nn.Linear(DIM, DIM)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.middle(self.mix(self.embed(tokens))))

    def middle(self, h: Tensor) -> Tensor:
        raise NotImplementedError


class Pooled(Around):
    """Adds the mean of four tokens to each of them."""

    def middle(self, h: Tensor) -> Tensor:
        b, s, d = h.shape
        pooled = torch.tanh(h.view(b, s // 4, 4, d).mean(2))
        return h + pooled.repeat_interleave(4, 1)


class Counted(Around):
    """Attends within blocks of four, their number by a division of floats."""

    def middle(self, h: Tensor) -> Tensor:
        b, s, d = h.shape
        blocks = h.reshape(b * int(s / 4), 4, d)
        return h + F.scaled_dot_product_attention(blocks, blocks, blocks).reshape(b, s, d)


class Halved(Around):
    """Treats both halves of a row in their own ways."""

    def middle(self, h: Tensor) -> Tensor:
        first, last = h.chunk(2, 1)
        return torch.cat([first.tanh(), last + first], 1)


class Strided(Around):
    """Sees every third token through a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv1d(DIM, DIM, 3, stride=3)

    def middle(self, h: Tensor) -> Tensor:
        down = self.down(h.transpose(1, 2)).transpose(1, 2)
        return h.unflatten(1, (-1, 3)).add(down[:, :, None]).flatten(1, 2)


class Placed(Around):
    """Has a table of 64 positions, and refuses what is no multiple of four."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Embedding(64, DIM)

    def middle(self, h: Tensor) -> Tensor:
        if h.shape[1] % 4:
            raise ValueError("a multiple of 4 tokens, please")
        return h + self.place(torch.arange(h.shape[1]))


class Padded(Around):
    """Fills the last four of a row up, where there is something to fill."""

    def middle(self, h: Tensor) -> Tensor:
        b, s, d = h.shape
        missing = (4 - s % 4) % 4
        h = F.pad(h, (0, 0, 0, missing)) if missing else h
        return h.view(b, -1, 4, d).cumsum(2).view(b, -1, d)[:, :s]


class Branching(Around):
    """Takes long rows in another way, and those in between in a third."""

    def middle(self, h: Tensor) -> Tensor:
        h = h.unflatten(1, (-1, 4)).tanh().flatten(1, 2)
        if 40 < h.shape[1] < 60:
            return h.exp()
        return h.sin() if h.shape[1] > 16 else h.cos()


class Split(Around):
    """Cuts a row at a share of its length, counts tokens by len, and asks what a size is."""

    def middle(self, h: Tensor) -> Tensor:
        cut = int(len(h[0]) * 0.5)
        assert isinstance(cut, int) and type(cut) is int
        return torch.cat([h[:, :cut].tanh(), h[:, cut:]], 1) / float(len(h[0]))


class Chance(Around):
    """Has numbers that are a length of rows that are traced: 13, 52 and 32."""

    def middle(self, h: Tensor) -> Tensor:
        h = h.unflatten(1, (-1, 4)).tanh().flatten(1, 2)
        return h * 13 + F.pad(h, (0, 0, 52, 0))[:, : h.shape[1]] + h.new_ones(32).sum()


KINDS = {
    (Pooled, 32): Lengths(8, None, 4),
    (Counted, 32): Lengths(8, None, 4),
    (Halved, 32): Lengths(4, None, 2),
    (Strided, 24): Lengths(6, None, 3),
    (Placed, 32): Lengths(8, 64, 4),
    (Padded, 32): Lengths(8, None, 4),
    (Branching, 8): Lengths(8, 16, 4),
    (Branching, 32): Lengths(20, 40, 4),
    (Branching, 64): Lengths(60, None, 4),
    (Split, 32): Lengths(4, None),
    (Chance, 32): Lengths(8, None, 4),
}


@cache
def _captured(kind: type[Around], seq: int) -> Traced:
    source = ModelSource(kind.__name__, VOCAB, None, kind)
    return captured(source, "f64", "", None, lambda _: None, seq)[0]


# Padding takes the longest of all to be found.
_PADDED = pytest.param(Padded, 32, marks=pytest.mark.long)


@pytest.mark.parametrize(
    ("kind", "seq"), [_PADDED, *(case for case in KINDS if case[0] is not Padded)]
)
def test_a_capture_is_for_all_lengths_that_are_taken_alike(kind: type[Around], seq: int) -> None:
    traced = _captured(kind, seq)
    assert traced.lengths == KINDS[kind, seq] and traced.lengths.takes(seq)
    assert parse_traced(format_traced(traced)) == traced
    prove(Subject(kind.__name__, kind, VOCAB, None), traced)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("kind", "seq"), [(Pooled, 24), (Counted, 8)])
def test_it_equals_the_module(
    kind: type[Around], name: str, seq: int, pool: Pool, tmp_path: Path
) -> None:
    made = planned(_captured(kind, 32), CASES[name], seq)
    data = [tokens_of(step, VOCAB, seq) for step in range(STEPS)]
    check_by_torch(kind, made, data, RATE, pool, tmp_path / "p")


@pytest.mark.parametrize(
    ("cut", "taken"),
    [
        (lambda s: s / 4, True),
        (lambda s: (s - 1) / 3, True),
        (lambda s: s * 0.29, False),  # of 100 the float is below 29
        (lambda s: s**0.5, False),
    ],
)
def test_what_floats_may_round_is_left_to_one_length(cut, taken: bool) -> None:
    class Cut(Around):
        def middle(self, h: Tensor) -> Tensor:
            first = int(cut(h.shape[1]))
            return torch.cat([h[:, :first].tanh(), h[:, first:]], 1)

    traced = captured(ModelSource("cut", VOCAB, None, Cut), "f64", "", None, lambda _: None, 100)[0]
    assert (traced.lengths == Lengths(100, 100)) is not taken
    assert any("for rows of 100 tokens alone" in line for line in traced.warnings) is not taken
    prove(Subject("cut", Cut, VOCAB, None), traced)


class Blocks(Around):
    """Attends to blocks of eight one by one."""

    def middle(self, h: Tensor) -> Tensor:
        parts = h.chunk(h.shape[1] // 8, 1)
        return torch.cat([F.scaled_dot_product_attention(x, x, x) for x in parts], 1)


def test_a_number_of_ops_that_follows_the_length_is_left_to_one_length() -> None:
    traced = _captured(Blocks, 32)
    assert traced.lengths == Lengths(32, 32)
    prove(Subject("blocks", Blocks, VOCAB, None), traced)


def test_other_lengths_are_refused_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kept, "capture_key", lambda *_: "placed")
    source = ModelSource("placed", VOCAB, None, Placed)
    said: list[str] = []
    for seq in (32, 48):
        captured(source, "f64", "", None, said.append, seq)
    assert [line for line in said if line.startswith("tracing")] == ["tracing placed"]
    with pytest.raises(SizeError, match="rows of 8 to 64 tokens, multiples of 4; give") as caught:
        captured(source, "f64", "", None, said.append, 30)
    assert "for 30 tokens alone: model placed: its forward fails on tokens" in str(caught.value)
    assert "\n" not in str(caught.value)
