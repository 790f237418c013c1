"""Under bf16: masters unless pinned, rounding said aloud, and long sums in float32."""

from dataclasses import replace

import pytest
from families import traced

from meshwright.codegen.program import emit
from meshwright.ir.errors import PlanError
from meshwright.ir.plan import MOST_SUMMED, Plan
from meshwright.ir.text.plan_text import format_plan, parse_plan
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.hardware.usable import RESERVED_SHARE
from meshwright.planner.report.explain import memory_by_kind
from meshwright.planner.search.candidate_costs import CandidateCosts
from meshwright.planner.search.candidates import candidates_of
from meshwright.planner.search.demands import check_pins
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import Pins, parse_pins
from meshwright.planner.search.problem import Problem
from meshwright.planner.search.search import search_plan
from meshwright.planner.simulate.stage_memory import WORKSPACE_BYTES

PURE = ["precision=pure", "rounding=nearest"]
CLUSTER = parse_cluster("h200:4")


def planned(*pins: str, dtype: str = "bf16", rows: int = 16) -> Plan:
    given = parse_pins(["dp=4", "micro_batch=1", *pins])
    return make_plan(traced("tiny-llama", dtype), CLUSTER, seq=64, global_batch=rows, pins=given)


@pytest.mark.parametrize(
    ("dtype", "pins", "precision", "rounding"),
    [
        ("bf16", [], "master", ""),
        ("bf16", ["precision=master"], "master", ""),
        ("bf16", PURE, "pure", "nearest"),
        ("bf16", ["precision=pure", "rounding=stochastic"], "pure", "stochastic"),
        ("f32", [], "pure", ""),
        ("f64", ["precision=pure"], "pure", ""),
    ],
)
def test_masters_are_the_default_where_updates_would_be_lost(
    dtype: str, pins: list, precision: str, rounding: str
) -> None:
    plan = planned(*pins, dtype=dtype)
    assert (plan.precision, plan.rounding) == (precision, rounding)
    assert parse_plan(format_plan(plan)) == plan
    assert (f'rounding="{rounding}"' in emit(plan)["layout.py"]) == bool(rounding)


@pytest.mark.parametrize(
    ("dtype", "pins", "said"),
    [
        ("bf16", ["precision=pure"], "rounding=stochastic.*rounding=nearest"),
        ("bf16", ["rounding=nearest"], "precision=master under bf16 updates weights in float32"),
        ("f32", PURE, "precision=pure under f32 updates weights in f32; leave the pin out"),
        ("f32", ["precision=master"], "needs dtype bf16, the plan's is f32"),
    ],
)
def test_what_does_not_go_together_is_refused_before_tracing(
    dtype: str, pins: list, said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        check_pins(CLUSTER, 16, dtype, parse_pins(pins))


@pytest.mark.parametrize(("microbatches", "summed"), [(MOST_SUMMED, "bf16"), (9, "f32")])
def test_long_sums_are_in_float32(microbatches: int, summed: str) -> None:
    plan = planned(*PURE, "zero=0", rows=4 * microbatches)
    assert plan.num_microbatches == microbatches
    assert plan.grad_dtype == plan.reduce_dtype == summed
    assert ("wide_grads=True" in emit(plan)["layout.py"]) == (summed == "f32")
    item_bytes = {"bf16": 2, "f32": 4}[summed]
    numel = sum(b.numel for b in plan.buckets)
    assert memory_by_kind(plan, 0)["gradients"] == item_bytes * numel


def test_the_search_prices_each_candidate_by_its_own_sums() -> None:
    """One question has candidates of few micro-batches and of many."""
    pins = parse_pins([*PURE, "dp=4", "zero=0"])
    model = traced("tiny-llama", "bf16")
    costs = CandidateCosts(Problem(model, CLUSTER, 64, 64, pins))
    found = list(candidates_of(model, CLUSTER, 64, pins, costs.problem.budget))
    by_count = {c.num_microbatches: costs.storage_bytes(c, 2.0, 0.0) for c in found}
    assert {n > MOST_SUMMED for n in by_count} == {True, False}
    few, many = (by_count[pick(by_count)] for pick in (min, max))
    assert many - few == 2.0  # an element's gradient, of 4 bytes in place of 2


def test_pins_are_none_unless_given() -> None:
    assert Pins().rounding is Pins().precision is None


def test_a_refusal_names_what_fits_without_masters() -> None:
    """A memory between what weights and moments in bf16 take and what masters take."""
    model = traced("tiny-llama", "bf16")
    size = 2_000_000 + int(2 * WORKSPACE_BYTES / (1 - RESERVED_SHARE))
    device = replace(CLUSTER.device, memory_bytes=size)
    small = replace(parse_cluster("h200:1"), device=device)
    with pytest.raises(PlanError, match="precision=pure --pin rounding=stochastic"):
        search_plan(model, small, seq=16, global_batch=1, pins=Pins())
    plan, _, _ = search_plan(
        model,
        small,
        seq=16,
        global_batch=1,
        pins=parse_pins(["precision=pure", "rounding=nearest"]),
    )
    assert plan.precision == "pure"
