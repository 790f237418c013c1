"""A norm's backward: sums over rows and over features, in one kernel or in two."""

import pytest
from families import traced
from torch._inductor import config

from meshwright.ir.graph import Graph, verify
from meshwright.ir.mesh import compute_mesh
from meshwright.ir.placement import replicated
from meshwright.ir.text.graph_text import parse_graph
from meshwright.planner.cost.column_sums import (
    JOINED_BYTES,
    JOINED_US,
    MEAN_BYTES,
    SHORT_ROW,
    joins_rows,
)
from meshwright.planner.cost.op_cost import Costs
from meshwright.planner.cost.phase_work import functions_of
from meshwright.planner.cost.piece_cost import Priced, piece_work
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.remat.options import proposals
from meshwright.planner.remat.statistics import with_statistics
from meshwright.planner.search.pins import Pins
from meshwright.planner.search.search import search_plan

WIDTH = 4096
# dw sums over rows, dx needs a sum over the features of each row; r is the statistic.
NORM = f"""graph norm
%x : f32[B, S, {WIDTH}] = input activation "x"
%w : f32[{WIDTH}] = input param "w"
%dy : f32[B, S, {WIDTH}] = input grad "dy"
%square : f32[B, S, {WIDTH}] = mul.Tensor(%x, %x)
%mean : f32[B, S, 1] = mean.dim(%square, dim=[-1], keepdim=True)
%add : f32[B, S, 1] = add.Tensor(%mean, other=1e-05)
%r : f32[B, S, 1] = rsqrt(%add)
%n : f32[B, S, {WIDTH}] = mul.Tensor(%x, %r)
%y : f32[B, S, {WIDTH}] = mul.Tensor(%n, %w)
%dn : f32[B, S, {WIDTH}] = mul.Tensor(%dy, %w)
%dyn : f32[B, S, {WIDTH}] = mul.Tensor(%dy, %n)
%dw1 : f32[1, 1, {WIDTH}] = sum.dim_IntList(%dyn, dim=[0, 1], keepdim=True)
%dw : f32[{WIDTH}] = view(%dw1, size=[{WIDTH}])
%dnn : f32[B, S, {WIDTH}] = mul.Tensor(%dn, %n)
%dot : f32[B, S, 1] = sum.dim_IntList(%dnn, dim=[2], keepdim=True)
%less : f32[B, S, {WIDTH}] = mul.Tensor(%n, %dot)
%rest : f32[B, S, {WIDTH}] = sub.Tensor(%dn, %less)
%dx : f32[B, S, {WIDTH}] = mul.Tensor(%rest, %r)
return %y, %dx, %dw
"""


def _norm() -> Graph:
    return verify(parse_graph(NORM))


def _priced(graph: Graph, cluster: str = "h200:1", rows: int = 4) -> Priced:
    costs = Costs(parse_cluster(cluster), compute_mesh(1), {"B": rows, "S": 4096})
    return Priced(graph, {n: replicated(len(v.shape)) for n, v in graph.values.items()}, costs)


@pytest.mark.parametrize(("saved", "joined"), [((), set()), (("r",), {"dw1"}), (("n",), {"dw1"})])
def test_a_column_sum_joins_the_rows_where_no_row_sum_comes_before_it(
    saved: tuple[str, ...], joined: set[str]
) -> None:
    sums = functions_of(_norm(), saved).backward.sums
    assert sums.joined == joined
    assert sums.waits_for == {"dw1": frozenset() if joined else {"mean"}}


def test_a_kept_statistic_spares_the_column_sum_its_own_reads() -> None:
    """dy and n are read once in place of twice; n is another name of x r in registers. The joined
    pass takes more than its bytes, and so does the mean that is not made again."""
    priced = _priced(_norm())
    apart, joined = (piece_work(priced, saved).backward for saved in ((), ("r",)))
    us = 1e6 / priced.costs.cluster.device.hbm_bytes_per_s
    elements = 4 * 4096 * WIDTH
    again = 2 * elements * 4 * us
    row = 4 * 4096 * 4 * us  # r itself is read
    long = WIDTH > SHORT_ROW
    slower = (JOINED_BYTES[long] - MEAN_BYTES[long]) * elements * us + JOINED_US
    saved = apart.pointwise_us - joined.pointwise_us
    assert saved == pytest.approx(again - row - slower, rel=1e-6)


@pytest.mark.parametrize(("cluster", "rows"), [("cpu:1", 4), ("h200:1", 1)])
def test_no_kernel_is_joined_on_a_cpu_or_over_few_rows(cluster: str, rows: int) -> None:
    """4,096 rows of 4,096 features are fewer than twice as many."""
    priced = _priced(_norm(), cluster, rows)
    apart, kept = (piece_work(priced, saved).backward for saved in ((), ("r",)))
    us = 1e6 / priced.costs.cluster.device.hbm_bytes_per_s
    mean = MEAN_BYTES[WIDTH > SHORT_ROW] * rows * 4096 * WIDTH * (cluster != "cpu:1")
    row = rows * 4096 * 4
    assert kept.pointwise_us - apart.pointwise_us == pytest.approx((row - mean) * us, rel=1e-6)


def test_the_statistic_is_kept_wherever_a_column_sum_waits_for_it() -> None:
    graph = _norm()
    for saved, kept in (((), ("r",)), (("r",), ("r",)), (("n",), ("n",)), (("mean",), ("mean",))):
        assert with_statistics(graph, saved, functions_of(graph, saved)) == kept
    priced = _priced(graph)
    for option in proposals(graph, priced.placements, priced.costs):
        assert {"r", "n", "mean"} & set(option.saved)
    priced = _priced(graph, "cpu:1")
    assert () in {o.saved for o in proposals(graph, priced.placements, priced.costs)}


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-gpt2", "tiny-gemma2"])
def test_no_backward_of_a_gpu_plan_computes_the_statistics_of_a_norm_again(model: str) -> None:
    plan, _, _ = search_plan(
        traced(model), parse_cluster("h100:1"), seq=512, global_batch=16, pins=Pins()
    )
    for piece in plan.pieces:
        backward = functions_of(piece.graph, piece.saved).backward
        assert not any(backward.sums.waits_for.values())


def test_torch_joins_sums_of_both_orders_on_gpus() -> None:
    """What joins_rows relies on: torch.compile does so unless it is told otherwise."""
    assert config.triton.mix_order_reduction
    assert joins_rows(16384, 4096) and not joins_rows(16384, 16385)
    assert not joins_rows(4096, 4096) and not joins_rows(4096, 1024)
    assert joins_rows(4096, 2048) and not joins_rows(4095, 2047)
