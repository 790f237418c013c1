"""A module that is captured for one length of rows, under every plan and as plain PyTorch."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from equivalence.pool import Pool
from equivalence.stock_runs import CASES, ROWS, SEQ, check_by_torch, planned, tokens_of
from torch import Tensor, nn

import meshwright as mw
from meshwright.api import capturing
from meshwright.api.capturing import captured, takes
from meshwright.ir.errors import CaptureError, SizeError
from meshwright.ir.lengths import Lengths
from meshwright.ir.traced import Traced
from meshwright.models import ModelSource
from meshwright.proof.prove import Subject, prove

VOCAB, DIM, STEPS, RATE = 32, 12, 2, 0.3


class Cell(nn.Module):
    """A state that goes from token to token, by a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.kept = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        given, state, found = self.given(h), torch.zeros_like(h[:, 0]), []
        for t in range(h.shape[1]):
            state = torch.tanh(given[:, t] + self.kept(state))
            found.append(state)
        return h + torch.stack(found, 1)


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.cells = nn.Sequential(Cell(), Cell())
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.cells(self.embed(tokens)))


class Gru(nn.Module):
    """Torch's own recurrent layer, whose parts are of one element."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB)
        self.layer = nn.GRU(DIM, DIM, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(tokens))[0])


@pytest.mark.long
def test_a_recurrent_layer_of_torch_is_proven() -> None:
    source = ModelSource("gru", VOCAB, None, Gru)
    traced, _ = captured(source, "f64", "", None, lambda _: None, SEQ)
    prove(Subject("gru", Gru, VOCAB, None), traced)


SOURCE = ModelSource("loop", VOCAB, None, Loop)


def _captured(seq: int | None = SEQ) -> tuple:
    said: list[str] = []
    return captured(SOURCE, "f64", "", None, said.append, seq)[0], said


@pytest.fixture(scope="module")
def proven() -> Traced:
    """The capture of the loop, proven once for all plans."""
    traced, said = _captured()
    assert traced.lengths == Lengths(SEQ, SEQ)
    assert any(f"rows of {SEQ} tokens alone" in line for line in said)
    prove(Subject("loop", Loop, VOCAB, None), traced)
    return traced


@pytest.mark.parametrize("name", CASES)
def test_it_equals_the_module(name: str, proven: Traced, pool: Pool, tmp_path: Path) -> None:
    made = planned(proven, CASES[name])
    data = [tokens_of(step, VOCAB) for step in range(STEPS)]
    check_by_torch(Loop, made, data, RATE, pool, tmp_path / "p")


def test_without_a_length_it_is_refused() -> None:
    with pytest.raises(SizeError, match="for every batch and sequence size"):
        _captured(None)


def test_long_rows_are_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CaptureError, match="at most --seq 1024, given 4096"):
        _captured(4096)
    monkeypatch.setattr(capturing, "MOST_OPS", 30)
    with pytest.raises(CaptureError, match=r"tokens alone it has \d+ ops, a plan takes 30"):
        _captured()


def test_a_plan_says_for_which_length_it_is() -> None:
    plan = mw.plan(SOURCE, cluster="cpu:1", job=mw.Job(SEQ, ROWS, dtype="f32"))
    assert f"captured for rows of {SEQ} tokens alone" in plan.report


class Doubling(nn.Module):
    """Sums over all tokens before, in as many passes as the length has bits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        h, reach = self.embed(tokens), 1
        while reach < tokens.shape[1]:
            h = h + F.pad(h, (0, 0, reach, 0))[:, :-reach]
            reach *= 2
        return self.head(torch.tanh(h))


@pytest.mark.parametrize("seq", [12, 24, 40])
def test_a_capture_for_some_lengths_leaves_the_others_to_one_of_their_own(seq: int) -> None:
    source = ModelSource("doubling", VOCAB, None, Doubling)
    traced, _ = captured(source, "f64", "", None, lambda _: None, seq)
    assert takes(traced, seq)
    prove(Subject("doubling", Doubling, VOCAB, None), traced)


class Fours(nn.Module):
    """Rows of a multiple of four tokens, unlike those that are tried first."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.shape[1] % 4:
            raise ValueError("a multiple of 4 tokens, please")
        return self.head(self.embed(tokens).tanh())


def test_a_length_that_a_module_takes_is_tried() -> None:
    source = ModelSource("fours", VOCAB, None, Fours)
    traced, _ = captured(source, "f64", "", None, lambda _: None, 8)
    assert traced.lengths == Lengths(8, None, 4)
    with pytest.raises(SizeError, match="a multiple of 4") as caught:
        captured(source, "f64", "", None, lambda _: None, 9)
    assert "for 9 tokens alone" not in str(caught.value)  # the same reason, said once


class Rooted(nn.Module):
    """Sums over as many tokens as a function makes of the length."""

    def __init__(self, count: Callable[[int], float]) -> None:
        super().__init__()
        self.count = count
        self.embed, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        return self.head(h + h[:, : int(self.count(h.shape[1]))].sum(1, keepdim=True))


@pytest.mark.parametrize("count", [lambda n: n**0.5, lambda n: math.log2(n)], ids=["root", "log2"])
def test_what_torch_puts_off_and_does_not_write_down_is_asked(
    count: Callable[[int], float],
) -> None:
    build = partial(Rooted, count)
    source = ModelSource("rooted", VOCAB, None, build)
    traced, _ = captured(source, "f64", "", None, lambda _: None, 16)
    assert any("for rows of 16 tokens alone" in line for line in traced.warnings)
    prove(Subject("rooted", build, VOCAB, None), traced)


@pytest.mark.long
def test_what_if_captures_a_model_of_one_length_for_each() -> None:
    job = mw.Job(SEQ, ROWS, dtype="f32")
    answers = mw.what_if(SOURCE, clusters=["cpu:1"], job=job, sweeps=["seq=6,8"])
    assert [a.point.seq for a in answers] == [6, 8] and all(a.step for a in answers)


class Ended(nn.Module):
    """Adds the mean of some tokens at an end of a row, two layers of it."""

    def __init__(self, part: slice) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB)
        self.layers = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(2))
        self.part = part

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        for layer in self.layers:
            h = h + layer(h) + h[:, self.part].mean(1, keepdim=True)
        return self.head(h)


@pytest.mark.parametrize("part", [slice(14), slice(-14, None)], ids=["first", "last"])
def test_rows_longer_than_a_slice_of_a_fixed_bound(part: slice, pool: Pool, tmp_path: Path) -> None:
    build, seq = partial(Ended, part), 24
    traced, _ = captured(ModelSource("ended", VOCAB, None, build), "f64", "", None, str, seq)
    assert traced.lengths == Lengths(15, None)
    prove(Subject("ended", build, VOCAB, None), traced)
    made = planned(traced, CASES["cp"], seq)
    data = [tokens_of(step, VOCAB, seq) for step in range(STEPS)]
    check_by_torch(build, made, data, RATE, pool, tmp_path / "p")


@pytest.mark.parametrize("seq", [16, 20])
def test_lengths_between_two_fixed_bounds(seq: int) -> None:
    class Both(Ended):
        def forward(self, tokens: Tensor) -> Tensor:
            h = self.embed(tokens)
            return self.head(h + h[:, :10].mean(1, True) + h[:, -18:].mean(1, True))

    build = partial(Both, slice(0))
    traced, _ = captured(ModelSource("both", VOCAB, None, build), "f64", "", None, str, seq)
    assert takes(traced, seq)
    prove(Subject("both", build, VOCAB, None), traced)
