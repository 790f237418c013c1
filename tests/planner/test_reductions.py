"""The dtype in which gradients travel: chosen in the plan, priced, and told apart by `diff`."""

from dataclasses import replace
from itertools import pairwise

import pytest
from families import traced

from meshwright.codegen.program import emit
from meshwright.ir.dtypes import TORCH_NAMES
from meshwright.ir.errors import ParseError, PlanError
from meshwright.ir.plan import Plan
from meshwright.ir.text.plan_text import format_plan, parse_plan
from meshwright.planner.hardware.cluster import COLLECTIVES, Cluster, Curve
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.report.diff import differences
from meshwright.planner.report.explain import memory_by_kind, summary
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import parse_pins
from meshwright.planner.simulate.step_model import Unit, step_model

CLUSTER = parse_cluster("h200:4")
# Links without latency: half the bytes take half the time.
RAMPS = tuple(Curve(name, 4, ((0, 0.0), (1, 1.0))) for name in COLLECTIVES)
SLOW = replace(CLUSTER, levels=(replace(CLUSTER.levels[0], curves=RAMPS),))


PURE = ["precision=pure", "rounding=nearest"]


def planned(*pins: str, dtype: str = "bf16") -> Plan:
    model = traced("tiny-llama", dtype)
    return make_plan(model, CLUSTER, seq=64, global_batch=16, pins=parse_pins(list(pins)))


def ffn(plan: Plan, cluster: Cluster = CLUSTER) -> Unit:
    return next(u for u in step_model(plan, cluster).stages[0] if "ffn" in u.name)


@pytest.mark.parametrize(
    ("dtype", "pins", "expected"),
    [
        ("bf16", PURE, "bf16"),
        ("bf16", [], "f32"),
        ("f32", [], "f32"),
        ("f64", [], "f64"),
        ("bf16", ["reduce_dtype=f32"], "f32"),
        ("bf16", ["precision=master", "reduce_dtype=bf16"], "bf16"),
        ("f32", ["reduce_dtype=bf16"], "bf16"),
    ],
)
def test_it_is_that_of_the_sums_unless_pinned(dtype: str, pins: list, expected: str) -> None:
    plan = planned("dp=4", *pins, dtype=dtype)
    assert plan.reduce_dtype == expected
    assert parse_plan(format_plan(plan)) == plan
    assert f"reduced in {expected}" in summary(plan)
    assert f'reduce_dtype="{TORCH_NAMES[expected]}",' in emit(plan)["layout.py"]


def test_a_plan_that_does_not_name_it_reduces_what_it_sums() -> None:
    plan = planned("dp=4", "precision=master")
    old = format_plan(plan).replace("reduce_dtype: f32\n", "")
    assert parse_plan(old) == plan


def test_a_plan_with_an_unknown_one_is_refused() -> None:
    text = format_plan(planned("dp=4", *PURE)).replace("reduce_dtype: bf16", "reduce_dtype: fp9")
    with pytest.raises(ParseError, match="reduce_dtype: 'fp9'.*f32"):
        parse_plan(text)


@pytest.mark.parametrize("value", ["f32", "bf16"])
def test_float64_refuses_the_pin(value: str) -> None:
    with pytest.raises(PlanError, match=f"reduce_dtype={value} with dtype f64.*leave the pin out"):
        planned("dp=4", f"reduce_dtype={value}", dtype="f64")


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_bytes_on_the_wire_and_the_copy_are_priced(zero: int) -> None:
    wide, narrow = (
        planned("dp=4", f"zero={zero}", "precision=master", f"reduce_dtype={name}")
        for name in ("f32", "bf16")
    )
    assert ffn(wide, SLOW).reduce_us == pytest.approx(2 * ffn(narrow, SLOW).reduce_us)
    bucket = next(b for b in wide.buckets if "ffn" in b.name)
    moved = (4 + 2) * bucket.numel * (2 if zero == 0 else 1)
    rate = CLUSTER.device.hbm_bytes_per_s / 1e6
    extra = ffn(narrow).blocking_us - ffn(wide).blocking_us
    assert extra == pytest.approx(moved / rate)


@pytest.mark.parametrize(
    ("zero", "pins", "item_bytes"),
    [
        (0, [*PURE, "reduce_dtype=f32"], 4),
        (0, PURE, 0),
        (1, ["precision=master", "reduce_dtype=bf16"], 2),
        (2, PURE, 2),
        (2, [*PURE, "reduce_dtype=f32"], 4 + 2),
        (3, ["precision=master", "reduce_dtype=bf16"], 2 + 4),
    ],
)
def test_gradients_on_their_way_are_counted_in_memory(
    zero: int, pins: list, item_bytes: int
) -> None:
    """Of two units that follow each other: one is under way while the other one is made."""
    plan = planned("dp=4", f"zero={zero}", *pins)
    found, both = memory_by_kind(plan, 0), _two_in_a_row(plan)
    assert found.get("gradient buffers", 0) == item_bytes * both
    assert found.get("gathered parameters", 0) == (2 * both if zero == 3 else 0)


def _two_in_a_row(plan: Plan) -> int:
    """Return the most elements that the buckets of two neighbouring units have."""
    size = {bucket.name: bucket.numel for bucket in plan.buckets}
    units = [sum(size[name] for name in i.buckets) for i in plan.instances]
    return max(a + b for a, b in pairwise(units))


def test_one_data_rank_copies_nothing() -> None:
    plain, pinned = planned("tp=4", "zero=0"), planned("tp=4", "zero=0", "reduce_dtype=f32")
    assert memory_by_kind(plain, 0) == memory_by_kind(pinned, 0)
    assert ffn(pinned).reduce_us == 0.0


def test_diff_gives_it_a_worth_of_its_own() -> None:
    first = planned("dp=4", "precision=master")
    second = replace(first, reduce_dtype="bf16")
    (found,) = differences(first, second, CLUSTER)
    assert (found.name, found.before, found.after) == ("reduce dtype", "f32", "bf16")
