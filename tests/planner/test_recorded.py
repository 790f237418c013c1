"""What is recorded as CUDA graphs: in which plans, in time and in memory."""

from dataclasses import replace

import pytest
from families import traced

from meshwright.codegen.program import emit
from meshwright.ir.ops.call import MODULE
from meshwright.ir.plan import Plan
from meshwright.ir.replay import may_replay
from meshwright.planner.cost.op_cost import Costs
from meshwright.planner.cost.piece_cost import WorkTable
from meshwright.planner.hardware.cluster import RECORDED, Cluster
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.report.explain import memory_by_kind
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import parse_pins
from meshwright.planner.search.search import search_plan
from meshwright.planner.simulate.predict import predict

GPUS = parse_cluster("h200:4")


def planned(*pins: str, cluster: str = "h200:4") -> Plan:
    given = parse_pins(list(pins))
    model = traced("tiny-llama", "bf16")
    return make_plan(model, parse_cluster(cluster), seq=64, global_batch=16, pins=given)


@pytest.mark.parametrize(
    ("pins", "recorded"),
    [
        (["dp=4", "zero=1", "micro_batch=1"], True),
        (["tp=4", "micro_batch=1"], True),
        (["dp=4", "zero=3", "micro_batch=4"], True),  # one micro-batch a step
        (["dp=4", "zero=3", "micro_batch=1"], False),  # gradients travel behind the next one
        (["pp=2", "dp=2"], True),  # each action apart
        (["pp=2", "dp=2", "zero=2"], False),
        (["dp=4", "schedule=gpipe"], True),
    ],
)
def test_ranks_record_where_no_gradient_travels_behind_a_backward(
    pins: list[str], recorded: bool
) -> None:
    plan = planned(*pins)
    assert plan.replays == recorded
    assert ("replays=True" in emit(plan)["layout.py"]) == recorded


def test_no_other_device_records() -> None:
    assert not planned("dp=4", cluster="cpu:4").replays


def test_functions_of_a_user_are_not_recorded() -> None:
    (graph, *_) = (piece.graph for piece in planned("dp=4").pieces)
    own = replace(graph.ops[-1], attrs=((MODULE, "their.kernels"),))
    assert may_replay("cuda", [graph])
    assert not may_replay("cuda", [replace(graph, ops=(*graph.ops[:-1], own))])


def test_no_recorded_function_waits_for_the_host() -> None:
    """The search prices each candidate as its plan is priced."""
    for pins in (["pp=1"], ["pp=2"], ["pp=2", "zero=2"], ["zero=3", "micro_batch=1"]):
        given = parse_pins(pins)
        model = traced("tiny-llama", "bf16")
        plan, found, _ = search_plan(model, GPUS, seq=64, global_batch=16, pins=given)
        prediction = predict(plan, GPUS)
        works = [unit.work for stage in prediction.model.stages for unit in stage]
        waits = sum(w.forward.waiting_us + w.backward.waiting_us for w in works)
        assert (waits == 0) == plan.replays
        assert found.bound_us <= prediction.step_us * (1 + 1e-9)


def test_kernels_of_a_recording_follow_each_other_closely() -> None:
    """A kernel takes RECORDED of the least time that it takes by itself."""
    plan = planned("dp=4")
    piece = next(p for p in plan.pieces if p.name == "ffn")

    def device_us(cluster: Cluster) -> float:
        table = WorkTable(Costs(cluster, plan.mesh.compute, plan.sizes))
        return table.of(piece.graph, piece.placements, piece.saved, False).forward.device_us

    at_once = replace(GPUS, device=replace(GPUS.device, launch_us=0.0))
    alone, recorded = (device_us(GPUS.issued(r)) - device_us(at_once) for r in (False, True))
    assert recorded == pytest.approx(RECORDED * alone) and 0 < recorded < alone


def test_a_recording_has_a_workspace_of_its_own() -> None:
    held = {
        pins: memory_by_kind(planned(*pins), 0) for pins in (("dp=4",), ("zero=3", "micro_batch=1"))
    }
    assert [kinds["matmul workspaces"] for kinds in held.values()] == [64 * 2**20, 32 * 2**20]
    assert "matmul workspaces" not in memory_by_kind(planned("dp=4", cluster="cpu:4"), 0)
