"""Rates of matmuls by their contracted dimension and by the share of attention in a step."""

import math
from dataclasses import replace

import pytest
from families import traced

from meshwright.ir.mesh import Mesh
from meshwright.ir.ops.registry import definition
from meshwright.ir.placement import replicated
from meshwright.ir.plan import Plan
from meshwright.ir.traced import Traced
from meshwright.planner.cost.graph_work import GraphWork
from meshwright.planner.cost.mix import Mix, mix_of_model, mix_of_plan
from meshwright.planner.cost.op_cost import Costs, shard_on
from meshwright.planner.hardware.cluster import READ_DEPTH, Cluster
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import Pins, parse_pins
from meshwright.planner.search.problem import Problem
from meshwright.planner.simulate.predict import predict

H200 = parse_cluster("h200:1")
SIZES = {"B": 2, "S": 4096}


def _llama() -> Traced:
    return traced("tiny-llama", "bf16")


def _planned(cluster: Cluster, pins: str, seq: int) -> Plan:
    return make_plan(_llama(), cluster, seq=seq, global_batch=4, pins=parse_pins([pins]))


def test_a_matmul_takes_the_time_of_a_longer_contracted_dimension() -> None:
    device, depth = H200.device, H200.device.tile_depth
    assert depth > 0 and device.depth_share(READ_DEPTH) == 1.0
    took = {k: k / device.depth_share(k) for k in (512, 1024, 2048)}  # of any time
    assert took[1024] - took[512] == pytest.approx(512 / (1 + depth / READ_DEPTH))
    assert took[2048] - took[1024] == pytest.approx(2 * (took[1024] - took[512]))
    assert device.depth_share(math.inf) == pytest.approx(1 + depth / READ_DEPTH)


@pytest.mark.parametrize(("target", "features"), [("mw.linear", 0), ("mw.linear_input_grad", 0)])
def test_features_that_a_rank_contracts_set_the_rate(target: str, features: int) -> None:
    """Cut over four ranks, four times as few: less than four times as fast."""
    graph = traced("tiny").joints["ffn"]
    op = next(op for op in graph.ops if op.target == target)
    values = [graph.values[name] for name in op.inputs]
    work, costs = GraphWork(graph).of[op.output.name], Costs(H200, Mesh((("tp", 4),)), SIZES)
    ranks = {i: len(v.shape) for i, v in enumerate(values)}
    whole = tuple(replicated(rank) for rank in ranks.values())
    last = ranks[features] - 1
    weight_dim = 1 if target == "mw.linear" else 0
    cut = shard_on(ranks[0], last, "tp"), shard_on(2, weight_dim, "tp")
    out = (replicated(len(op.output.shape)),)
    loads = [costs.load(op, ins, out, work) for ins in (whole, cut)]
    assert all(load is not None for load in loads)
    contracted = [load.rate.contracted for load in loads if load is not None]
    assert contracted == [costs.number(values[0].shape[-1]), contracted[0] / 4]
    assert loads[0].flops == 4 * loads[1].flops  # type: ignore[union-attr]


def test_gradients_of_weights_contract_rows() -> None:
    graph = traced("tiny").joints["ffn"]
    op = next(op for op in graph.ops if op.target == "mw.linear_weight_grad")
    assert definition(op).contracts is None


@pytest.mark.parametrize("seq", [64, 4096, 65536])
@pytest.mark.parametrize("pins", ["tp=2", "pp=2", "cp=2"])
def test_a_plan_has_the_mix_of_its_model(seq: int, pins: str) -> None:
    cluster = parse_cluster("h200:2")
    plan = _planned(cluster, pins, seq)
    model = mix_of_model(_llama(), seq, cluster).attention_share(cluster.device)
    assert mix_of_plan(plan, cluster).attention_share(cluster.device) == pytest.approx(model)


def test_attention_of_long_rows_raises_the_clock() -> None:
    model = _llama()
    clocks = {
        seq: mix_of_model(model, seq, H200).on(H200).device.clock for seq in (64, 4096, 65536)
    }
    assert clocks[64] < clocks[4096] < clocks[65536] < 1 + H200.device.clock_gain
    assert clocks[64] >= 1 - 0.2 * H200.device.clock_gain


def test_a_clock_is_of_a_step_alone() -> None:
    """It follows from the rates of the device: setting it twice is setting it once."""
    mix = mix_of_model(_llama(), 65536, H200)
    once = mix.on(H200)
    assert once.device.clock > 1 and mix.on(once) == once
    assert once.device.matmul_rate("bf16") == H200.device.matmul_rate("bf16")


def test_a_search_prices_every_cluster_at_its_clock() -> None:
    """Another cluster that is asked about, too."""
    problem = Problem(_llama(), parse_cluster("cpu:1"), 65536, 4, Pins())
    other = replace(problem, cluster=H200)
    clocked = mix_of_model(_llama(), 65536, H200).on(H200)
    assert clocked.device.clock > 1 and problem.rates.device.clock == 1
    assert other.rates == clocked.rates and other.placed_for.cluster == clocked


def test_devices_whose_clock_is_not_known_keep_it() -> None:
    cpu = parse_cluster("cpu:1")
    mix = mix_of_model(_llama(), 4096, cpu)
    assert mix == Mix() and mix.on(cpu) == cpu


def test_a_step_takes_less_where_the_clock_rises() -> None:
    plan = _planned(H200, "tp=1", 65536)
    still = replace(H200, device=replace(H200.device, clock_gain=0.0))
    assert predict(plan, H200).step_us < predict(plan, still).step_us
