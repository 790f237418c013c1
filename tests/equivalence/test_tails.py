"""Logits that no plain linear layer makes: the loss holds them whole, under every plan."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from equivalence.cases import Case, ModelDraw
from equivalence.draws import DrawnModel
from equivalence.law import Court
from equivalence.pool import Pool
from torch import Tensor, nn

from meshwright.ir.capture.export import trace

VOCAB, DIM = 31, 12


class Tailed(nn.Module):
    """Two blocks, and a tail of its own."""

    def __init__(self, tail: Callable[["Tailed", Tensor], Tensor], bias: bool) -> None:
        super().__init__()
        self.config = type("Config", (), {"vocab_size": VOCAB})
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(2))
        self.head = nn.Linear(DIM, VOCAB, bias=bias)
        self.scale = nn.Parameter(torch.ones(1))
        self.tail = tail

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        for block in self.blocks:
            h = h + torch.tanh(block(h)) + 0.1 * h.cumsum(1)
        return self.tail(self, h)


TAILS: dict[str, tuple[Callable[[Tailed, Tensor], Tensor], bool]] = {
    "bias": (lambda m, h: m.head(h), True),
    "factor": (lambda m, h: m.head(h) * 0.5 / 1.5, False),
    "learned-scale": (lambda m, h: m.head(h) * m.scale, False),
    "embedding": (lambda m, h: h @ m.embed.weight.t() + m.head(h), False),
    "squashed": (lambda m, h: torch.tanh(m.head(h)) * 3 + m.head(h), True),
    "normed": (lambda m, h: torch.log_softmax(m.head(h), -1), False),
}
PLANS = {
    "one": {"accumulation": 2},
    "tp": {"tp": 2, "shard_weights": True},
    "pp": {"pp": 2, "accumulation": 2},
    "cp": {"cp": 2, "zero": 2},
    "dp": {"dp": 2, "zero": 3, "recompute": "all"},
}


@pytest.fixture(scope="module")
def court(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Court:
    made = Court(Path(tmp_path_factory.mktemp("tails")), pool)
    for number, (name, tail) in enumerate(TAILS.items()):
        build = partial(Tailed, *tail)
        made.models[_draw(number)] = DrawnModel(f"tail-{name}", VOCAB, build, build)
    return made


def _draw(number: int) -> ModelDraw:
    return ModelDraw("tails", False, number, 0)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("number", range(2))
def test_it_equals_the_plain_model(number: int, plan: str, court: Court) -> None:
    words = {"micro_batch": 2, "seq": 8, "steps": 2} | PLANS[plan]
    court.try_case(Case(number=3000 + number, seed=0, model=_draw(number), **words))


@pytest.mark.parametrize("number", range(2, len(TAILS)))
def test_other_tails_equal_it_too(number: int, court: Court) -> None:
    plan = list(PLANS.values())[number % len(PLANS)]
    words = {"micro_batch": 2, "seq": 8, "steps": 2} | plan
    court.try_case(Case(number=3000 + number, seed=0, model=_draw(number), **words))


def test_the_coverage_says_so() -> None:
    traced = trace(partial(Tailed, *TAILS["bias"]), "biased", "f32", VOCAB)
    assert any("the loss holds every logit" in said for said in traced.warnings)
