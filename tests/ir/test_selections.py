"""One element of a dim, by its index: cut where the other dims are, and equal to eager."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from equivalence.cases import Case, ModelDraw
from equivalence.draws import DrawnModel
from equivalence.law import Court
from equivalence.pool import Pool
from torch import Tensor, nn

DIM, VOCAB = 8, 32
DRAW = ModelDraw("selections", False, 0, 0)
CASES = [
    Case(number=1, seed=0, model=DRAW, micro_batch=2, accumulation=2),
    Case(number=2, seed=0, model=DRAW, micro_batch=2, tp=2, shard_weights=True, seq=6),
]


class Selections(nn.Module):
    """From both ends, of weights, features and tokens, the last token by its place."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.taps = nn.Parameter(torch.rand(2 * DIM, 4))
        self.up = nn.Linear(DIM, 2 * DIM, bias=False)
        self.down = nn.Linear(2 * DIM, DIM, bias=False)
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        h = self.up(x)
        h = F.softplus(h * self.taps[:, 0]) + F.leaky_relu(h * self.taps[:, -1])
        h = h + F.mish(h * self.taps[:, 1]) + F.hardswish(h * self.taps[:, -2])
        x = x + self.down(h)
        x = x * x[..., -1:].sigmoid() + x[..., 3].unsqueeze(-1)
        x = x + x[:, tokens.shape[1] - 1].unsqueeze(1) + x[:, -2].unsqueeze(1)
        return self.lm_head(x)


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Court]:
    made = Court(tmp_path_factory.mktemp("selections"), Pool())
    made.models[DRAW] = DrawnModel("selections", VOCAB, Selections, Selections)
    yield made
    made.pool.stop()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_selections_equal_the_plain_model(court: Court, case: Case) -> None:
    readings = court.try_case(case)
    worst = max((r.error, r.name) for r in readings if r.kind != "param")
    assert worst[0] < 1e-11, worst


def test_a_selection_leaves_the_other_dims_cut(court: Court) -> None:
    plan = court.plan(CASES[1])
    assert not [note for note in plan.coverage if note.startswith(("select", "softplus", "mish"))]
    taps = [p.placements[i.value.name] for p in plan.pieces for i in p.graph.inputs_of("param")
            if i.ref.endswith("taps")]  # fmt: skip
    assert [p.dims[0] != () for p in taps] == [True]
