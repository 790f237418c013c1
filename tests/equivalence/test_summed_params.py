"""Parameters that forward adds up: one value is the gradient of each of them."""

from dataclasses import replace

import pytest
import torch
from equivalence.cases import Case, ModelDraw
from equivalence.draws import DrawnModel
from equivalence.law import Court
from equivalence.pool import Pool
from torch import Tensor, nn

DIM, VOCAB = 12, 31
DRAW = ModelDraw("summed", False, 0, 0)
CASE = Case(number=1, seed=0, model=DRAW, accumulation=2, micro_batch=2, steps=2)
CASES = [
    replace(CASE, number=1),
    replace(CASE, number=2, tp=2, recompute="all", shard_weights=True),
    replace(CASE, number=3, dp=2, zero=3),
    replace(CASE, number=4, cp=2),
    replace(CASE, number=5, pp=2, schedule="zb-h1"),
]


class Summed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        for layer in self.layers:
            h = h + layer(h)
        return self.head(h)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(DIM, DIM) * 0.2)
        self.more = nn.Parameter(torch.randn(DIM, DIM) * 0.2)
        self.gains = nn.ParameterList(torch.full((DIM,), 0.1 * k) for k in range(1, 4))

    def forward(self, h: Tensor) -> Tensor:
        return torch.tanh(h @ (self.up + self.more)) * sum(self.gains)


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory, pool: Pool) -> Court:
    made = Court(tmp_path_factory.mktemp("summed"), pool)
    made.models[DRAW] = DrawnModel("summed", VOCAB, Summed, Summed)
    return made


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.number))
def test_each_gets_the_whole_gradient(court: Court, case: Case) -> None:
    court.try_case(case)
