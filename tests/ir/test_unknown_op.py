"""Ops that nobody registered: whole on each rank, named with their line, and equal to eager."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from equivalence.cases import Case, ModelDraw
from equivalence.draws import DrawnModel
from equivalence.law import Court
from equivalence.pool import Pool
from odd_model import VOCAB, InPlace, Odd
from torch import nn

from meshwright.cli import main
from meshwright.codegen.program import emit
from meshwright.ir.capture.export import trace
from meshwright.ir.errors import CaptureError
from meshwright.ir.ops.registry import named
from meshwright.ir.plan import Plan
from meshwright.ir.text.plan_text import format_plan, parse_plan
from meshwright.proof.prove import Subject, prove

DRAW = ModelDraw("odd", False, 0, 0)
FORWARD = "stack flip prod.dim_int cumsum topk scatter_add index_put index.Tensor oddlib::cube"
BACKWARD = "gather scatter.src oddlib::cube_grad"
CASES = [
    Case(number=1, seed=0, model=DRAW, micro_batch=2, accumulation=2),
    Case(number=2, seed=0, model=DRAW, micro_batch=2, tp=2, shard_weights=True, seq=6),
    Case(number=3, seed=0, model=DRAW, micro_batch=2, tp=2, recompute="all", zero=3),
    Case(number=4, seed=0, model=DRAW, micro_batch=2, dp=2, recompute="none", zero=1),
]


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Court]:
    made = Court(tmp_path_factory.mktemp("odd"), Pool())
    made.models[DRAW] = DrawnModel("odd", VOCAB, Odd, Odd)
    yield made
    made.pool.stop()


@pytest.fixture(scope="module")
def plan(court: Court) -> Plan:
    return court.plan(CASES[1])


def test_none_of_them_is_registered() -> None:
    assert not [name for name in f"{FORWARD} {BACKWARD}".split() if named(name).registered]


def test_they_are_replicated_and_named_with_their_source_line(plan: Plan) -> None:
    for target in FORWARD.split():
        assert any(
            note.startswith(f"{target} ") and "tests/odd_model.py:" in note
            for note in plan.coverage
        ), (target, plan.coverage)
    for target in BACKWARD.split():
        assert any(note.startswith(f"{target} ") for note in plan.coverage), target
    wanted = {*FORWARD.split(), *BACKWARD.split()}
    found = [(p, op) for p in plan.pieces for op in p.graph.ops if op.target in wanted]
    assert {op.target for _, op in found} == wanted
    for piece, op in found:
        names = [*(n for n in op.inputs if n), *(v.name for v in op.outputs)]
        assert all(piece.placements[n].is_replicated("tp") for n in names)


def test_the_warning_of_a_custom_op_says_what_the_program_imports(plan: Plan) -> None:
    notes = [note for note in plan.coverage if note.startswith("oddlib::")]
    assert notes and all("imports odd_model, which registers it" in note for note in notes)


def test_their_text_is_the_call_that_was_captured(court: Court) -> None:
    text = emit(court.plan(CASES[0]))["stage_00.py"]
    for line in (
        "import odd_model  # registers oddlib::cube, oddlib::cube_grad",
        "stack = torch.ops.aten.stack.default([x, fc_linear, mul], dim=2)",
        "topk_0, topk_1 = torch.ops.aten.topk.default(up_linear, k=3)",
        "torch.ops.aten.index.Tensor(add_3, [None, None, ",
        "torch.ops.oddlib.cube.default(fc_linear, scale=0.5)",
    ):
        assert line in text, line
    assert text.index("import odd_model") < text.index("import torch")


def test_their_plan_is_its_text(plan: Plan) -> None:
    assert parse_plan(format_plan(plan)) == plan


@pytest.mark.parametrize("case", CASES, ids=str)
def test_their_program_equals_the_plain_model(court: Court, case: Case) -> None:
    readings = court.try_case(case)
    assert {r.kind for r in readings} == {"loss", "norm", "grad", "param"}
    worst = max((r.error, r.name) for r in readings if r.kind != "param")
    assert worst[0] < 1e-11, worst


def test_a_write_into_a_buffer_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"at tests/odd_model.py:\d+ writes into buffer"):
        trace(InPlace, "in-place", "f64", VOCAB)


def test_the_command_refuses_it_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--cluster", "cpu:1", "--seq", "8", "--global-batch", "2"]
    path = str(tmp_path / "plan.txt")
    assert main(["plan", "py:odd_model:build_in_place", *sizes, "-o", path]) == 2
    assert "writes into buffer seen" in capsys.readouterr().err


class Marked(nn.Module):
    """A parameter stands in the places of a token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 8), nn.Linear(8, 32)
        self.mark = nn.Parameter(torch.randn(8))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.embed(tokens).clone()
        h[tokens == 3] = self.mark
        return self.head(h.tanh())


def test_a_parameter_in_the_places_of_a_mask_has_its_gradient_without_an_index() -> None:
    """An index of bools has a size that values decide, which no plan knows."""
    traced = trace(Marked, "marked", "f64", 32)
    targets = {op.target for joint in traced.joints.values() for op in joint.ops}
    assert "index_put" not in targets and "index.Tensor" not in targets
    prove(Subject("marked", Marked, 32, None), traced)
