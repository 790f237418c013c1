"""Attention is priced as the backend computes it that the kernel chooses."""

from itertools import product

import pytest
import torch

from meshwright.ir.graph import Graph
from meshwright.ir.mesh import Mesh
from meshwright.ir.ops.questions import flops
from meshwright.ir.placement import Placement
from meshwright.ir.text.graph_text import parse_graph
from meshwright.planner.cost.counts import number
from meshwright.planner.cost.graph_work import GraphWork
from meshwright.planner.cost.op_cost import SOFTCAP_SHARE, Costs
from meshwright.planner.hardware.cluster import TRITON
from meshwright.planner.hardware.cluster_file import parse_cluster

CLUSTER = parse_cluster("h200:1")
SEQ, HEAD = 4096, 64


def _graph(
    dtype: str,
    window: int,
    softcap: float = 0.0,
    causal: bool = True,
    heads: int = 4,
    key_heads: int = 2,
    head_dim: int = HEAD,
) -> Graph:
    q, k = f"{dtype}[B, {heads}, S, {head_dim}]", f"{dtype}[B, {key_heads}, S, {head_dim}]"
    return parse_graph(f"""graph attention
%q : {q} = input activation "q"
%k : {k} = input context "k"
%v : {k} = input context "v"
%o : {q}; %lse : f32[B, {heads}, S] = mw.attention(%q, %k, %v, scale=1.0, causal={causal}, \
window={window}, softcap={softcap})
return %o
""")


def _costs(rows: int = 2, length: int = SEQ) -> Costs:
    return Costs(CLUSTER, Mesh({}), {"B": rows, "S": length})


def _us(graph: Graph, rows: int = 2, length: int = SEQ) -> float:
    (op,) = (op for op in graph.ops if op.target == "mw.attention")
    whole = Placement(((),) * 4)
    return _costs(rows, length).op_us(
        op, (whole,) * 3, (whole, Placement(((),) * 3)), GraphWork(graph).of["o"]
    )


def _backward_us(
    rows: int,
    length: int,
    heads: int = 4,
    key_heads: int = 2,
    head_dim: int = HEAD,
    window: int = 0,
) -> float:
    q, k = f"bf16[B, {heads}, S, {head_dim}]", f"bf16[B, {key_heads}, S, {head_dim}]"
    graph = parse_graph(f"""graph attention
%g : {q} = input gradient "g"
%q : {q} = input activation "q"
%k : {k} = input context "k"
%v : {k} = input context "v"
%o : {q} = input activation "o"
%lse : f32[B, {heads}, S] = input activation "lse"
%dq : {q}; %dk : {k}; %dv : {k} = mw.attention_backward(%g, %q, %k, %v, %o, %lse, scale=1.0, \
causal=True, window={window}, softcap=0.0)
return %dq
""")
    (op,) = (op for op in graph.ops if op.target == "mw.attention_backward")
    whole, rows_whole = Placement(((),) * 4), Placement(((),) * 3)
    ins = (whole,) * 5 + (rows_whole,)
    return _costs(rows, length).op_us(op, ins, (whole,) * 3, GraphWork(graph).of["dq"])


@pytest.mark.parametrize(("window", "length"), list(product((1, 3, 8, 20), (1, 5, 8, 33))))
def test_flops_count_the_pairs_of_a_window(window: int, length: int) -> None:
    """Half of the diagonals at both edges is left out, as in causal attention without a window."""
    graph = _graph("bf16", window)
    (op,) = (op for op in graph.ops if op.target == "mw.attention")
    i, j = torch.arange(length).unsqueeze(1), torch.arange(length)
    seen = int(((j <= i) & (j > i - window)).sum())
    counted = number(flops(op, graph), {"B": 1, "S": length}) / (4 * 4 * HEAD)
    edge = min(window, length) / 2
    assert counted == pytest.approx(seen - edge, abs=0.51)


def test_a_window_runs_at_the_readings_of_rows_that_see_as_many_keys() -> None:
    device, window = CLUSTER.device, 1024
    alike = window * (2 - window / SEQ)
    rates = device.attention_rate(HEAD, alike, TRITON)
    assert rates is not None
    pairs = 2 * 4 * (SEQ * window - window * window / 2)
    expected = 4 * pairs * HEAD / rates[0] * 1e6 + device.launch_us
    assert _us(_graph("bf16", window)) == pytest.approx(expected)
    capped = 4 * pairs * HEAD / (rates[0] * SOFTCAP_SHARE[0]) * 1e6 + device.launch_us
    assert _us(_graph("bf16", window, 30.0)) == pytest.approx(capped)


@pytest.mark.parametrize(
    ("heads", "key_heads", "head_dim", "length", "window", "forward", "backward"),
    [(4, 1, 256, 1024, 0, 38.4, 132.5), (4, 1, 256, 1024, 512, 30.0, 92.5),
     (4, 1, 256, 2048, 0, 69.9, 243.8), (4, 1, 256, 4096, 0, 133.5, 684.7),
     (8, 4, 256, 512, 0, 23.4, 83.3), (8, 4, 256, 1024, 0, 39.1, 146.6),
     (8, 4, 256, 1024, 512, 30.1, 106.9), (8, 4, 256, 2048, 0, 73.1, 351.6),
     (8, 1, 128, 1024, 512, 17.9, 44.8), (16, 4, 128, 1024, 512, 22.0, 61.2)],
)  # fmt: skip
def test_few_blocks_of_our_kernels_take_the_time_of_the_longest(
    heads: int, key_heads: int, head_dim: int, length: int, window: int, forward: float,
    backward: float,
) -> None:  # fmt: skip
    """Read on an H200 (2026-12-01), one row, recorded; both gradients' kernels added."""
    graph = _graph("bf16", window, 0.0, True, heads, key_heads, head_dim)
    us = (
        _us(graph, 1, length),
        _backward_us(1, length, heads, key_heads, head_dim, window),
    )
    assert us == pytest.approx((forward, backward), rel=0.15)


def test_heads_of_half_a_tile_run_at_half_its_rate() -> None:
    unread = parse_cluster("a100:1").device
    assert unread.attention_rate(32, 512) == tuple(0.5 * r for r in unread.attention_rate(64, 512))


@pytest.mark.parametrize(
    ("heads", "length", "forward", "backward"),
    [(8, 512, 10.2, 26.2), (16, 512, 10.3, 26.4), (8, 1024, 15.8, 38.1), (16, 1024, 15.3, 41.1),
     (32, 1024, 23.9, 72.3), (4, 2048, 24.3, 65.0), (8, 2048, 24.2, 63.6), (16, 2048, 38.7, 112.0),
     (16, 4096, 104.2, 299.7)],
)  # fmt: skip
def test_few_blocks_of_the_vendors_kernel_take_the_time_of_the_longest(
    heads: int, length: int, forward: float, backward: float
) -> None:
    """Read on an H200 with heads of 64 (2026-11-29), launches queued ahead."""
    us = _us(_graph("bf16", 0), heads // 4, length), _backward_us(heads // 4, length)
    assert us == pytest.approx((forward, backward), rel=0.1)


def test_many_blocks_of_the_vendors_kernel_run_at_its_readings() -> None:
    """32 heads on 16,384 tokens are 31 waves of blocks. Without a causal mask all blocks are alike:
    few of them take less than twice the time."""
    device = CLUSTER.device
    rates = device.attention_rate(HEAD, 1024)
    assert rates is not None
    square = 4 * 4 * HEAD * 1024 * 1024
    many = 128 * square / 2 / rates[0] * 1e6 + device.launch_us
    assert _us(_graph("bf16", 0), 128, 1024) == pytest.approx(many, rel=3e-3)
    one, all_seen = (_us(_graph("bf16", 0, causal=c), 1, 1024) for c in (True, False))
    assert 1.0 < all_seen / one < 2.0


@pytest.mark.parametrize(
    ("head_dim", "forward", "backward"),
    [(8, 44, 44), (16, 94, 93), (32, 185, 180), (48, 276, 264), (72, 292, 241), (80, 347, 282),
     (96, 411, 344), (112, 474, 405)],
)  # fmt: skip
def test_a_head_fills_a_part_of_the_next_larger_ones_tiles(
    head_dim: int, forward: float, backward: float
) -> None:
    """Read on an H200 at 4,096 tokens (benchmarks/attention.py --heads): 369 and 341 Tflop/s with
    heads of 64, 545 and 469 with heads of 128."""
    larger = 64 if head_dim < 64 else 128
    read = {64: (369, 341), 128: (545, 469)}[larger]
    own, full = (CLUSTER.device.attention_rate(size, SEQ) for size in (head_dim, larger))
    assert own is not None and full is not None
    shares = own[0] / full[0], own[1] / full[1]
    assert shares == pytest.approx((forward / read[0], backward / read[1]), rel=0.1)


def test_a_window_as_long_as_the_row_runs_as_the_whole() -> None:
    assert _us(_graph("bf16", SEQ)) == _us(_graph("bf16", 0))


def test_without_a_fused_kernel_scores_are_read_written_and_held() -> None:
    device, graph = CLUSTER.device, _graph("f32", 0)
    scores = 2 * 4 * SEQ * SEQ
    moved = 6 * 4 * scores / device.hbm_bytes_per_s * 1e6
    busy = 4 * HEAD * scores / device.matmul_rate("f32") * 1e6
    assert _us(graph) == pytest.approx(max(moved, busy), rel=0.02)
    (op,) = (op for op in graph.ops if op.target == "mw.attention")
    held = _costs().scores(op, GraphWork(graph).of["o"], (Placement(((),) * 4),) * 3)
    assert held is not None and held.held_bytes == 2 * 4 * scores
