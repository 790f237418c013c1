"""Inputs of a step beside tokens: what a forward asks for is given on every rank, or refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from equivalence.cases import Case, ModelDraw
from equivalence.draws import DrawnModel
from equivalence.law import Court
from equivalence.pool import Pool
from sampling import mostly_long
from stream_models import VOCAB, Masked, Placed, PlacedPlain
from torch import Tensor, nn

from meshwright.cli import main
from meshwright.codegen.program import layout_source
from meshwright.ir.capture.export import trace
from meshwright.ir.errors import CaptureError
from meshwright.ir.inputs import StepInput
from meshwright.ir.sizes import B, S

DRAW = ModelDraw("placed", False, 0, 0)
CASE = Case(number=1, seed=0, model=DRAW, micro_batch=2, accumulation=2)
CASES = [
    CASE,
    replace(CASE, number=2, cp=2, zero=3),
    replace(CASE, number=3, pp=2, tp=2, shard_weights=True, recompute="all"),
    replace(CASE, number=4, cp=2, tp=2, recompute="none"),
]


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory, pool: Pool) -> Court:
    made = Court(tmp_path_factory.mktemp("inputs"), pool)
    made.models[DRAW] = DrawnModel("placed", VOCAB, Placed, PlacedPlain)
    return made


def test_the_schema_holds_what_the_forward_asks_for(court: Court) -> None:
    plan = court.plan(CASE)
    assert plan.inputs == (
        StepInput("tokens", "i64", (B, S)),
        StepInput("labels", "i64", (B, S)),
        StepInput("positions", "i64", (B, S)),
        StepInput("denominator", "f64", ()),
    )
    assert 'Input("positions", "int64", ("B", "S")),' in layout_source(plan)


@pytest.mark.parametrize("case", mostly_long(CASES, CASES[1]), ids=str)
def test_the_program_equals_the_plain_model(court: Court, case: Case) -> None:
    worst = max((r.error, r.name) for r in court.try_case(case) if r.kind != "param")
    assert worst[0] < 1e-11, worst


def test_what_no_step_gives_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--cluster", "cpu:1", "--seq", "8", "--global-batch", "2"]
    path = str(tmp_path / "plan.txt")
    assert main(["plan", f"py:stream_models:{Masked.__name__}", *sizes, "-o", path]) == 2
    error = capsys.readouterr().err
    assert "'attention_mask', which no input of a step fills" in error
    assert "position_ids" in error


class Twice(Placed):
    def forward(self, tokens: Tensor, positions: Tensor, position_ids: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(tokens, positions + position_ids)


class Nothing(Placed):
    def forward(self) -> Tensor:  # type: ignore[override]
        return self.embed.weight


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Twice, "takes 'positions' and 'position_ids', both are positions"),
        (Nothing, "its forward takes no tokens"),
    ],
)
def test_a_forward_that_no_step_fits_is_refused(module: type[nn.Module], message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        trace(module, "odd", "f64", VOCAB)
