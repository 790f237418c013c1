"""A model whose parameters start in many ways: its programs equal the plain model."""

import copy

import pytest
import torch
from equivalence.cases import Case, ModelDraw
from equivalence.draws import DrawnModel
from equivalence.law import Court
from equivalence.pool import Pool
from torch import Tensor, nn

from meshwright.ir.text.plan_text import format_plan, parse_plan

VOCAB, DIM = 24, 8
DRAW = ModelDraw("initial-values", False, 0, 0)
CASE = Case(
    number=1, seed=0, model=DRAW, dp=2, tp=2, zero=3, micro_batch=2, shard_weights=True,
    freeze=("mix.weight",),
)  # fmt: skip


class Initialised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM, padding_idx=3)
        self.scale = nn.Parameter(torch.log(torch.arange(1.0, DIM + 1)))
        self.mix = nn.Linear(DIM, DIM, bias=False)
        self.turn = nn.Linear(DIM, DIM, bias=False)
        self.up = nn.Linear(DIM, 2 * DIM, bias=False)
        self.gate = copy.deepcopy(self.up)
        self.down = nn.Linear(2 * DIM, DIM, bias=False)
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)
        with torch.no_grad():
            nn.init.orthogonal_(self.turn.weight, 0.5)
            self.mix.weight.copy_(torch.eye(DIM) + 0.1 * torch.linspace(0, 1, DIM))
            self.down.weight[2:6, 4:].mul_(0.5)
            self.lm_head.weight[1] = torch.linspace(-0.1, 0.1, DIM)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens) * self.scale
        h = h + self.turn(self.mix(h))
        return self.lm_head(h + self.down(self.up(h) * self.gate(h)))


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory, pool: Pool) -> Court:
    made = Court(tmp_path_factory.mktemp("initial"), pool)
    made.models[DRAW] = DrawnModel("initial-values", VOCAB, Initialised, Initialised)
    return made


@pytest.mark.long
def test_each_rank_cuts_its_part(court: Court) -> None:
    plan = court.plan(CASE)
    assert parse_plan(format_plan(plan)) == plan
    texts = {param.name: param.init for param in plan.params}
    assert texts["scale"].startswith("stored(#") and texts["mix.weight"].startswith("stored(#")
    assert texts["gate.weight"].endswith(" of(up.weight)")
    assert any("3 tensors" in line for line in plan.coverage), plan.coverage
    readings = court.try_case(CASE)
    worst = max((r.error, r.name) for r in readings if r.kind != "param")
    assert worst[0] < 1e-11, worst
