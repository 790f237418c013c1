"""Weights of three dims under optimizers that keep moments of matrices: equal to torch's own."""

from dataclasses import replace

import pytest
import torch
from equivalence.cases import Case, ModelDraw
from equivalence.draws import DrawnModel
from equivalence.law import Court
from equivalence.pool import Pool
from torch import Tensor, nn

VOCAB, DIM = 32, 16
DRAW = ModelDraw("stacked", False, 0, 0)


class Stacked(nn.Module):
    """Four layers' matrices in one parameter, and a head with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.Parameter(torch.randn(4, DIM, DIM) * 0.2)
        self.hidden = nn.Linear(DIM, DIM)
        self.lm_head = nn.Linear(DIM, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for i in range(4):
            x = x + torch.tanh(x @ self.layers[i])
        return self.lm_head(x + torch.tanh(self.hidden(x)))


CASE = Case(number=1, seed=0, model=DRAW, optimizer="adafactor", accumulation=2, steps=4)
CASES = [
    CASE,
    replace(CASE, number=2, dp=2, zero=3),
    replace(CASE, number=3, tp=2, shard_weights=True),
    replace(CASE, number=4, dp=3, zero=1, resume=2),
    replace(CASE, number=5, tp=2, dp=2, zero=2, shard_weights=True, random_costs=True),
    replace(CASE, number=6, dp=2, zero=2, optimizer="muon"),
]


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory, pool: Pool) -> Court:
    made = Court(tmp_path_factory.mktemp("stacked"), pool)
    made.models[DRAW] = DrawnModel(DRAW.family, VOCAB, Stacked, Stacked)
    return made


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_program_equals_torchs_optimizer(case: Case, court: Court) -> None:
    court.try_case(case)
