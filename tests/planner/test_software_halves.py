"""Layers that keep what enters them alone, shares cast as they are gathered, matmuls in fp8."""

from dataclasses import replace

import pytest
from families import planned, traced

from meshwright.ir.plan import Piece, Plan
from meshwright.planner.cost.op_cost import Costs
from meshwright.planner.cost.phase_work import functions_of
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import parse_pins
from meshwright.planner.simulate.predict import predict
from meshwright.planner.software.float8 import cast_us
from meshwright.planner.software.memory import Layers, peak_bytes
from meshwright.planner.software.profile import Software
from meshwright.planner.software.step import model_under, step_us
from meshwright.planner.software.work import Theirs, inner_pieces

CLUSTER = parse_cluster("h200:1")
_FREE = {"call_us": 0.0, "launch_us": 0.0}  # recorded or not, kernels take the same
SLOW = replace(CLUSTER, device=replace(CLUSTER.device, hbm_bytes_per_s=1e9, **_FREE))
FLOAT8 = Software("float8", float8=True)
ALONE = Software("alone", keeps_layers=True)


@pytest.fixture(scope="module", params=["all", "cheap"])
def again(request: pytest.FixtureRequest) -> Plan:
    rule = f"recompute={request.param}"
    return planned("tiny-llama", "h200:1", "micro_batch=2", rule, seq=64)


@pytest.fixture(scope="module")
def kept() -> Plan:
    return planned("tiny-llama", "h200:1", "micro_batch=2", "recompute=none", seq=64)


def narrow(cluster: str, *pins: str) -> Plan:
    """Return the plan of the same model in bf16."""
    given = parse_pins(["micro_batch=2", *pins])
    model = traced("tiny-llama", "bf16")
    return make_plan(model, parse_cluster(cluster), seq=64, global_batch=4, pins=given)


def piece_of(plan: Plan, name: str) -> Piece:
    return next(piece for piece in plan.pieces if piece.name == name)


def test_the_first_half_of_a_layer_is_computed_again_to_its_end(again: Plan) -> None:
    """Its last matmul and the sum with what came in, in each layer."""
    piece = piece_of(again, "attention")
    theirs = Theirs(piece, Costs(SLOW, again.mesh.compute, again.sizes), ALONE, inner=True)
    names = [op.output.name for op in theirs.again_to_end]
    assert inner_pieces(again) == {"attention"}
    assert {"attention_o_linear", "add"} <= set(names) and "attention_q_linear" not in names
    models = predict(again, SLOW).model, model_under(again, SLOW, ALONE)
    for own, there in zip(*(model.stages[0] for model in models), strict=True):
        more = there.work.backward.us - own.work.backward.us
        assert (more > 0) == own.name.endswith(".attention")
    assert step_us(again, SLOW, ALONE) > step_us(again, SLOW, Software("same"))


def test_a_layer_that_keeps_all_computes_nothing_again(kept: Plan) -> None:
    assert step_us(kept, SLOW, ALONE) == step_us(kept, SLOW, Software("same"))


def test_what_enters_the_second_half_is_not_kept(kept: Plan) -> None:
    some = planned("tiny-llama", "h200:1", "micro_batch=2", "recompute=cheap", seq=64)
    for plan, spared in ((some, 1), (kept, 0)):
        own = predict(plan, CLUSTER).model.stages[0]
        there = list(Layers(plan, CLUSTER, ALONE).units(own))
        for before, after in zip(own, there, strict=True):
            less = before.work.kept_bytes - after.work.kept_bytes
            assert less == before.work.entry_bytes * spared * before.name.endswith(".ffn")


def test_whole_layers_keep_their_rank_s_share_of_what_enters() -> None:
    """And of what enters the second half, while they are computed again."""
    cluster = parse_cluster("h200:2")
    pins = ("tp=2", "dp=1", "shard_sequence=0", "shard_weights=1", "price=1e-6", "recompute=all")
    plan = planned("tiny-llama", "h200:2", "micro_batch=2", *pins, seq=64)
    own = predict(plan, cluster).model.stages[0]
    whole, cut = (
        list(Layers(plan, cluster, replace(ALONE, cuts_sequence=cuts)).units(own))
        for cuts in (False, True)
    )
    for before, one, two in zip(own, whole, cut, strict=True):
        if before.name.endswith(".attention"):
            assert two.work.kept_bytes == one.work.kept_bytes / 2 == before.work.entry_bytes / 2
        if before.name.endswith(".ffn"):
            less = one.work.backward.peak_bytes - two.work.backward.peak_bytes
            assert less >= before.work.entry_bytes / 2


def test_shares_in_float32_alone_lie_once_and_what_is_gathered_twice() -> None:
    cluster = parse_cluster("h200:2")
    plan = narrow("h200:2", "dp=2", "zero=3", "precision=master")
    kinds = dict(predict(plan, cluster).peaks[0].bytes_by_kind)
    own, cast = (
        peak_bytes(plan, cluster, Software("one", casts_shards=casts)) for casts in (False, True)
    )
    assert own - cast == pytest.approx(kinds["parameters"])
    copied = peak_bytes(plan, cluster, Software("one", copies_gathered=True))
    assert copied - own == pytest.approx(kinds["gathered parameters"]) and copied > own


def test_matmuls_in_fp8_cast_their_operands() -> None:
    """Each operand of forward is read twice in bf16 and written once in fp8."""
    plan = narrow("h200:1", "recompute=none")
    piece = piece_of(plan, "ffn")
    costs = Costs(SLOW, plan.mesh.compute, plan.sizes)
    functions = functions_of(piece.graph, piece.saved)
    names = "ffn_norm_mul_2", "ffn_mul", "ffn_gate_w", "ffn_up_w", "ffn_down_w"
    size = sum(costs.local_bytes(piece.graph.values[n], piece.placements[n]) for n in names)
    assert cast_us(functions.forward, piece, costs) == pytest.approx(size * 2.5 / 1e9 * 1e6)
    own, there = (
        next(unit.work.forward for unit in model.stages[0] if unit.name == "layers.0.ffn")
        for model in (predict(plan, SLOW).model, model_under(plan, SLOW, FLOAT8))
    )
    slower, faster = (SLOW.device.matmul_rate(dtype) for dtype in ("bf16", "fp8"))
    assert there.matmul_us == pytest.approx(own.matmul_us * slower / faster)
    assert there.pointwise_us == pytest.approx(own.pointwise_us + size * 2.5 / 1e9 * 1e6)


def test_a_card_without_fp8_casts_nothing() -> None:
    plan, cluster = narrow("a100:1", "recompute=none"), parse_cluster("a100:1")
    assert step_us(plan, cluster, FLOAT8) == step_us(plan, cluster, Software("same"))


def test_sums_of_several_products_run_beside_no_matmul() -> None:
    """In backward each half reduces what its projections give for their common input."""
    cluster = parse_cluster("h200:2")
    pins = ("tp=2", "dp=1", "shard_sequence=0", "shard_weights=1", "price=1e-6", "recompute=none")
    plan = planned("tiny-llama", "h200:2", "micro_batch=2", *pins, seq=64)
    beside = Software("beside", overlaps_tensor=True)
    one, two = (
        model_under(plan, cluster, replace(beside, waits_for_sums=waits)).stages[0]
        for waits in (False, True)
    )
    for before, after in zip(one, two, strict=True):
        inside = before.name.startswith("layers.")
        assert before.work.forward == after.work.forward
        more = after.work.backward.collective_us - before.work.backward.collective_us
        assert (more > 0) == inside
