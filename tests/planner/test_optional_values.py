"""Logits: kept for backward where memory allows, computed again in passing where it does not."""

import math

import pytest
from families import planned

from meshwright.ir.graph import Graph, verify
from meshwright.ir.mesh import compute_mesh
from meshwright.ir.ops.loss import LEAST_TOKENS, LOGITS_ELEMENTS
from meshwright.ir.ops.questions import passing, without_passing
from meshwright.ir.ops.registry import definition
from meshwright.ir.placement import Placement, replicated
from meshwright.ir.text.graph_text import parse_graph
from meshwright.planner.cost.op_cost import Costs, shard_on
from meshwright.planner.cost.phase_work import PhaseWork
from meshwright.planner.cost.piece_cost import Priced, piece_work
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.remat.options import proposals
from meshwright.planner.remat.rules import candidates, saved_values
from meshwright.planner.report.explain import peaks
from meshwright.planner.sharding.ilp import shard
from meshwright.planner.sharding.lower import lower
from meshwright.planner.sharding.nodes import Demands

TOKENS, FEATURES, VOCAB = 8192, 1024, 65536
HEAD = f"""graph head
%x : bf16[B, S, {FEATURES}] = input activation "x"
%w : bf16[{VOCAB}, {FEATURES}] = input param "w"
%labels : i64[B, S] = input data "labels"
%lse : f32[B, S]; %picked : f32[B, S]; %logits : bf16[B, S, {VOCAB}] = \
mw.linear_cross_entropy(%x, %w, %labels, softcap=0.0)
%nll : f32[B, S] = sub.Tensor(%lse, %picked)
%loss : f32[] = sum(%nll)
%one : f32[B, S] = ones_like(%lse)
%less : f32[B, S] = neg(%one)
%dx : bf16[B, S, {FEATURES}]; %dw : bf16[{VOCAB}, {FEATURES}] = \
mw.linear_cross_entropy_backward(%one, %less, %x, %w, %labels, %lse, %logits, softcap=0.0)
return %loss, %dx, %dw
"""


def _lowered(group: int) -> tuple[Graph, dict[str, Placement], Costs]:
    sizes = {"B": 2, "S": TOKENS // 2}
    costs = Costs(parse_cluster(f"h200:{group}"), compute_mesh(group), sizes)
    joint = verify(parse_graph(HEAD))
    demands = Demands(shard_matmul_weights=group > 1)
    return *lower(joint, shard(joint, costs, 0.0, demands), costs), costs


def test_what_is_not_kept_is_gone_from_both_sides() -> None:
    graph = verify(parse_graph(HEAD))
    assert passing(graph) == {"logits"}
    assert without_passing(graph, ("lse", "logits")) is graph
    bare = verify(without_passing(graph, ("lse",)))
    assert "logits" not in bare.values and passing(bare) == set()
    assert [len(op.inputs) for op in bare.ops if op.target.endswith("backward")] == [6]


def test_rules_and_proposals() -> None:
    graph, placements, costs = _lowered(1)
    assert "logits" in candidates(graph)
    assert "logits" in saved_values(graph, "none")
    assert "logits" not in saved_values(graph, "cheap") + saved_values(graph, "all")
    found = {kept.saved for kept in proposals(graph, placements, costs)}
    assert {("lse",), ("lse", "logits")} <= found


@pytest.mark.parametrize("group", [1, 4])
def test_keeping_saves_one_matmul_and_holds_the_logits(group: int) -> None:
    """Over tp the vocabulary is cut, and its logits with it."""
    graph, placements, costs = _lowered(group)
    if group > 1:
        assert placements["w"] == shard_on(2, 0, "tp")
        assert placements["logits"] == shard_on(3, 2, "tp")
    priced = Priced(graph, placements, costs)
    without = piece_work(priced, ("lse",))
    kept = piece_work(priced, ("lse", "logits"))
    device = costs.cluster.device
    rate = device.matmul_rate("bf16") * device.depth_share(math.inf)
    matmul_us = 2 * TOKENS * FEATURES * VOCAB / group / rate * 1e6
    assert without.backward.us - kept.backward.us == pytest.approx(matmul_us)
    assert kept.forward.matmul_us == pytest.approx(without.forward.matmul_us)
    size = 2 * TOKENS * VOCAB / group
    assert kept.kept_bytes - without.kept_bytes == size
    assert kept.forward.peak_bytes - without.forward.peak_bytes == size
    assert without.backward.peak_bytes < size + LOGITS_ELEMENTS * 6


@pytest.mark.parametrize(
    ("cluster", "forward", "again", "given"), [("h200:1", 2, 4, 2), ("cpu:1", 6, 6, 6)]
)
@pytest.mark.parametrize("wider", [1, 2])
def test_a_chunk_of_logits_is_held_as_the_device_computes_it(
    cluster: str, forward: int, again: int, given: int, wider: int
) -> None:
    """Bytes for each of its logits; on CUDA, kernels read them in bf16, and a chunk is of 4,096
    tokens at least however wide the vocabulary."""
    graph = verify(parse_graph(HEAD.replace(str(VOCAB), str(wider * VOCAB))))
    elements = LOGITS_ELEMENTS if cluster == "cpu:1" else LEAST_TOKENS * wider * VOCAB
    costs = Costs(parse_cluster(cluster), compute_mesh(1), {"B": 2, "S": TOKENS // 2})
    placements = {name: replicated(len(value.shape)) for name, value in graph.values.items()}
    for less, backward in ((graph, given), (without_passing(graph, ("lse",)), again)):
        priced = Priced(less, placements, costs)
        held = [
            priced.workspace(op, PhaseWork(less)) for op in less.ops if definition(op).workspace
        ]
        assert held == [forward * elements, backward * elements]


def test_a_report_has_the_peak_of_the_devices_of_the_plan() -> None:
    plan = planned("tiny-llama", "h200:2", "pp=2", seq=64)
    assert max(peak.total_bytes for peak in peaks(plan)) == dict(plan.costs)["predicted_peak_bytes"]


def test_an_operand_elsewhere_is_done_without() -> None:
    """Logits cut along another dim than the op reads are not exchanged."""
    graph = verify(parse_graph(HEAD))
    costs = Costs(parse_cluster("h200:4"), compute_mesh(4), {"B": 2, "S": TOKENS // 2})
    sharding = shard(graph, costs, 0.0, Demands(shard_matmul_weights=True))
    sharding.made["logits"] = shard_on(3, 1, "tp")
    lowered, _ = lower(graph, sharding, costs)
    assert passing(lowered) == {"logits"}
    assert not any("logits" in op.inputs for op in lowered.ops)
    assert "logits" not in candidates(lowered)
