"""Models of which several values cross a cut: their programs equal the plain model."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from equivalence.cases import Case, ModelDraw
from equivalence.draws import DrawnModel
from equivalence.law import Court
from equivalence.pool import Pool
from sampling import mostly_long
from stream_models import DIM, LAYERS, VOCAB, Gated, TwoStreams, ValueResidual
from torch import Tensor
from torch.nn import functional as F

from meshwright.ir.capture.export import trace
from meshwright.ir.plan import Plan
from meshwright.ir.text.plan_text import format_plan, parse_plan

MODELS = {
    ModelDraw("value-residual", False, 0, 0): ValueResidual,
    ModelDraw("two-streams", False, 0, 0): TwoStreams,
    ModelDraw("gated", False, 0, 0): Gated,
}
VALUES, STREAMS, GATED = MODELS
CASE = Case(number=1, seed=0, model=VALUES, micro_batch=2, accumulation=4)
CASES = [
    CASE,
    replace(CASE, number=2, pp=2, recompute="none"),
    replace(CASE, number=3, pp=2, dp=2, schedule="zbv", chunks=2, zero=2, recompute="all"),
    replace(CASE, number=4, tp=2, shard_weights=True, recompute="cheap"),
    replace(CASE, number=5, cp=2, zero=3, recompute="all"),
    replace(CASE, number=6, model=STREAMS, pp=4, schedule="zb-h1", recompute="none"),
    replace(CASE, number=7, model=STREAMS, tp=2, pp=2, shard_weights=True),
    replace(CASE, number=8, model=STREAMS, pp=2, freeze=("embed.*", "layers.0.*", "layers.1.*")),
    replace(CASE, number=9, model=VALUES, pp=2, freeze=("embed.*", "layers.0.*")),
    replace(CASE, number=10, model=GATED, pp=2, recompute="all"),
]


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory, pool: Pool) -> Court:
    made = Court(tmp_path_factory.mktemp("boundaries"), pool)
    for draw, module in MODELS.items():
        made.models[draw] = DrawnModel(draw.family, VOCAB, module, module)
    return made


@pytest.fixture(scope="module")
def plan(court: Court) -> Plan:
    return court.plan(CASES[2])


def test_layers_that_read_a_value_of_the_first_are_one_segment() -> None:
    segmented = trace(ValueResidual, "values", "f64", VOCAB).segmented
    names = [i.segment for i in segmented.instances]
    assert names == ["embed", "mix", "up", *["mix_2", "up"] * (LAYERS - 2), "mix_3", "up_2", "head"]
    for name in ("up", "mix_2"):
        graph = segmented.segment(name).graph
        assert len(graph.inputs_of("activation")) == len(graph.outputs) == 2


def test_layers_of_two_streams_are_one_segment() -> None:
    segmented = trace(TwoStreams, "streams", "f64", VOCAB).segmented
    names = [i.segment for i in segmented.instances]
    assert names == ["embed", "up", *["up_2"] * (2 * LAYERS - 2), "up_3", "head"]


def test_their_plan_is_its_text(plan: Plan) -> None:
    assert plan.boundary_values == 2
    assert parse_plan(format_plan(plan)) == plan


@pytest.mark.parametrize("case", mostly_long(CASES, CASES[3], CASES[5], CASES[9]), ids=str)
def test_their_program_equals_the_plain_model(court: Court, case: Case) -> None:
    readings = court.try_case(case)
    assert {r.kind for r in readings} == {"loss", "norm", "grad", "param"}
    worst = max((r.error, r.name) for r in readings if r.kind != "param")
    assert worst[0] < 1e-11, worst


class OwnTables(ValueResidual):
    """Every layer keeps a table of its own, as a buffer; that of the last one can differ."""

    def __init__(self, last: float = 1.0) -> None:
        super().__init__()
        scales = [1.0] * (LAYERS - 1) + [last]
        for layer, scale in zip(self.layers, scales, strict=True):
            layer.register_buffer("table", torch.linspace(0.5, scale, DIM), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer.down(F.gelu(layer.up(layer.norm_2(x) * layer.table)))
        return self.head(self.norm(x))


@pytest.mark.parametrize("last, segments", [(1.0, {"up": LAYERS}), (0.75, {"up": 2, "up_2": 1})])
def test_layers_with_equal_tables_are_one_segment(last: float, segments: dict) -> None:
    segmented = trace(lambda: OwnTables(last), "tables", "f64", VOCAB).segmented
    found = Counter(i.segment for i in segmented.instances)
    assert {name: found[name] for name in segments} == segments
