"""Numbers made of sizes, odd schemas and odd names: the program equals the plain model."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from emitted_models import VOCAB, Alike, Inner, Scaled, Schemas, Sized
from equivalence.cases import Case, ModelDraw
from equivalence.draws import DrawnModel
from equivalence.law import Court
from equivalence.pool import Pool
from sampling import mostly_long
from torch import Tensor, nn

from meshwright.codegen.local import identifier
from meshwright.codegen.program import emit
from meshwright.ir.capture.export import trace
from meshwright.ir.errors import CaptureError
from meshwright.ir.text.plan_text import format_plan, parse_plan

MODELS = {ModelDraw(m.__name__, False, 0, 0): m for m in (Sized, Schemas, Alike, Scaled)}
SIZED, SCHEMAS, ALIKE, SCALED = MODELS
CASE = Case(number=1, seed=0, model=SIZED, micro_batch=2, accumulation=2)
CASES = [
    CASE,
    replace(CASE, number=2, cp=2, recompute="all"),
    replace(CASE, number=3, model=SCHEMAS, tp=2, shard_weights=True, recompute="all"),
    replace(CASE, number=4, model=ALIKE, pp=2, schedule="zb-h1", recompute="none"),
    replace(CASE, number=5, model=SCALED, compiled=True),
]


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory, pool: Pool) -> Court:
    made = Court(tmp_path_factory.mktemp("emitted"), pool)
    for draw, module in MODELS.items():
        made.models[draw] = DrawnModel(draw.family, VOCAB, module, module)
    return made


@pytest.mark.parametrize("case", mostly_long(CASES, CASES[0], CASES[2], CASES[3]), ids=str)
def test_the_program_equals_the_plain_model(court: Court, case: Case) -> None:
    text = format_plan(court.plan(case))
    assert format_plan(parse_plan(text)) == text
    worst = max((r.error, r.name) for r in court.try_case(case) if r.kind != "param")
    assert worst[0] < 1e-11, worst


def _model(function: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        made = Inner()
        made.inner = function  # type: ignore[method-assign]
        return made

    return build


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda a: a * a.shape[0], r"mul.Tensor at .*\.py:\d+ calculates with B, in which B is"),
        (lambda a: a - a.mean(0), r"mean.dim at .* makes one value of all rows"),
        (lambda a: a * (a.shape[1] > 3), r"gt at .* compares sizes"),
        (lambda a: a * round(a.shape[1] * 0.5), r"round at .* takes the RoundToInt of a size"),
        (lambda a: torch.stack(a.unbind(1), 1), r"S is bound to a number \(13\)"),
        (lambda a: a ** (a.shape[1] - 5), r"pow.Tensor_Scalar at .* cannot be traced with its gr"),
        (lambda a: torch.fft.fft(a).real, r"fft_fft at .* makes a tensor of torch.complex"),
    ],
)
def test_what_no_program_can_compute_is_refused(
    function: Callable[[Tensor], Tensor], message: str
) -> None:
    with pytest.raises(CaptureError, match=message):
        trace(_model(function), "refused", "f64", VOCAB)


def test_a_gradient_without_dims_is_added_to_through_a_view(court: Court) -> None:
    """What a compiled function writes into an input without dims is lost on a CPU."""
    text = emit(court.plan(CASES[4]))["stage_00.py"]
    assert "grad_gain.view(1).add_(d_gain)" in text
    assert "grad_shift.add_(d_shift)" in text


def test_no_two_names_become_one_identifier() -> None:
    names = ["sum", "sum_", "sum__", "lambda", "lambda_", "1", "_1", "__1", "x", "x_", "S", "S_"]
    assert len({identifier(name) for name in names}) == len(names)
