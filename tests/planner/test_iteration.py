"""What Muon's iteration is predicted to take, against what its function does."""

from dataclasses import replace

import pytest
import torch
from families import planned, traced
from torch.utils.flop_counter import FlopCounterMode

from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import parse_pins
from meshwright.planner.simulate.iteration import STEPS, iteration, iterations, iterations_of
from meshwright.planner.simulate.step_model import step_model
from meshwright.runtime.optimizers import muon


@pytest.mark.parametrize(("rows", "columns"), [(24, 24), (16, 40), (40, 16)])
def test_flops_are_those_of_the_function(rows: int, columns: int) -> None:
    wide = muon.wide(torch.randn(rows, columns))[None]
    with FlopCounterMode(display=False) as counter:
        muon.newton_schulz(wide)
    assert iteration(rows, columns).flops == counter.get_total_flops()
    assert STEPS == muon.STEPS


def test_hidden_matrices_alone_are_iterated_on() -> None:
    plan = planned("tiny-llama", "cpu:1", "optimizer=muon")
    found = iterations_of(plan)
    hidden = {p.name for p in plan.params if len(p.shape) == 2} - plan.tables()
    assert set(found) == hidden and len(hidden) > 3
    assert iterations("muon", traced("tiny-llama")) == found
    assert iterations("adamw", traced("tiny-llama")) == {}


@pytest.mark.parametrize("ranks", [2, 4])
def test_products_are_shared_out_over_ranks_and_results_travel(ranks: int) -> None:
    """Of ranks that hold all alike, each iterates on its share of the matrices."""
    alone, several = (_update_us(n) - _update_us(n, "lion") for n in (1, ranks))
    found = iterations("muon", traced("tiny-llama")).values()
    flops = sum(item.flops for item in found)
    share = flops / parse_cluster("cpu:1").device.matmul_rate("f32") * 1e6 * (1 - 1 / ranks)
    quick = _update_us(ranks, fast=True) - _update_us(ranks, "lion", fast=True)
    assert several > quick  # updates travel between ranks
    assert alone - quick > share


def _update_us(ranks: int, optimizer: str = "muon", fast: bool = False) -> float:
    """Return the update of a rank. fast: its links take no time."""
    cluster = parse_cluster(f"cpu:{ranks}")
    if fast:
        levels = tuple(replace(v, alpha_us=0.0, bytes_per_s=1e18) for v in cluster.levels)
        cluster = replace(cluster, levels=levels)
    pins = parse_pins([f"optimizer={optimizer}", f"dp={ranks}", "zero=0", "micro_batch=1"])
    plan = make_plan(traced("tiny-llama"), cluster, seq=8, global_batch=4, pins=pins)
    return max(step_model(plan, cluster).optimizer_us)
