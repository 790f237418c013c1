"""Submodules, parameters and buffers under names that Python does not take."""

import pytest
import torch
from equivalence.cases import Case, ModelDraw
from equivalence.draws import DrawnModel
from equivalence.law import Court
from equivalence.pool import Pool
from stream_models import DIM, VOCAB, Named
from torch import Tensor, nn

from meshwright.ir.capture.export import trace
from meshwright.ir.errors import CaptureError
from meshwright.ir.text.plan_text import format_plan, parse_plan

DRAW = ModelDraw("named", False, 0, 0)
CASE = Case(number=1, seed=0, model=DRAW, micro_batch=2, tp=2, zero=1, recompute="all")


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory, pool: Pool) -> Court:
    made = Court(tmp_path_factory.mktemp("names"), pool)
    made.models[DRAW] = DrawnModel("named", VOCAB, Named, Named)
    return made


def test_the_program_equals_the_plain_model(court: Court) -> None:
    plan = court.plan(CASE)
    assert parse_plan(format_plan(plan)) == plan
    worst = max((r.error, r.name) for r in court.try_case(CASE) if r.kind != "param")
    assert worst[0] < 1e-11, worst


class Spaced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.add_module("my head", nn.Linear(DIM, VOCAB, bias=False))

    def forward(self, tokens: Tensor) -> Tensor:
        return dict(self.named_modules())["my head"](self.embed(tokens))


def test_a_parameter_that_no_plan_can_name_is_refused() -> None:
    with pytest.raises(CaptureError, match="a parameter is called 'my head.weight'"):
        trace(Spaced, "spaced", "f64", VOCAB)


class Alike(nn.Module):
    """Two buffers that are one name once dots are underscores."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.a, self.a_b = nn.Embedding(VOCAB, DIM), nn.Module(), nn.Module()
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)
        self.a.register_buffer("b_c", torch.linspace(0, 1, DIM).cos())
        self.a_b.register_buffer("c", torch.linspace(0, 1, DIM).sin())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.lm_head(x * self.a.b_c + x * self.a_b.c)


def test_no_two_values_have_one_name_in_a_program() -> None:
    graph = trace(Alike, "alike", "f64", VOCAB).graph
    names = [name.replace(".", "_") for name in graph.values]
    assert len(set(names)) == len(names)
