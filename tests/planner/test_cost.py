"""Counts as numbers: what substitution gives, and what fused ops move."""

import math
from dataclasses import replace
from itertools import product

import pytest
import sympy
from families import traced

from meshwright.ir.dtypes import ITEM_BYTES
from meshwright.ir.graph import Value
from meshwright.ir.mesh import Mesh
from meshwright.ir.ops.questions import flops
from meshwright.ir.placement import replicated
from meshwright.ir.sizes import SYMBOLS, num_elements
from meshwright.ir.text.graph_text import parse_graph
from meshwright.planner.cost.counts import number
from meshwright.planner.cost.graph_work import GraphWork
from meshwright.planner.cost.op_cost import Costs
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import Pins
from meshwright.planner.simulate.step_model import exposed_sum_bytes, precision_of, step_model


def test_counts_equal_substitution_at_every_size() -> None:
    graphs = traced("tiny-gemma2").joints.values()
    counts = {flops(op, graph) for graph in graphs for op in graph.ops}
    counts = {count for count in counts if not isinstance(count, int)}
    assert len(counts) > 5
    for count, b, s in product(counts, (1, 2, 7), (1, 5, 4096)):
        exact = count.subs({SYMBOLS["B"]: b, SYMBOLS["S"]: s})
        assert number(count, {"B": b, "S": s}) == float(exact)
    halved = (SYMBOLS["S"] + 1) / 2 + sympy.floor(SYMBOLS["B"] / 2)
    assert number(halved, {"B": 3, "S": 4}) == 3.5 and number(7, {}) == 7.0


def test_a_sum_over_rows_reads_anew_what_the_chain_beside_it_has_read() -> None:
    """A norm's backward: the weight's gradient sums over rows, the input's over the last dim."""
    shape = "bf16[B, S, 8]"
    graph = parse_graph(
        "\n".join(
            (
                "graph norm",
                f'%x : {shape} = input activation "x"',
                '%w : bf16[8] = input param "w"',
                f'%dy : {shape} = input grad "dy"',
                f"%y : {shape} = mul.Tensor(%x, %w)",
                f"%a : {shape} = mul.Tensor(%dy, %x)",
                "%dw : bf16[1, 1, 8] = sum.dim_IntList(%a, dim=[0, 1], keepdim=True)",
                "%dw2 : bf16[8] = view(%dw, size=[8])",
                f"%dx : {shape} = mul.Tensor(%dy, %w)",
                "return %y, %dx, %dw2",
            )
        )
    )
    work = GraphWork(graph).of
    moved = {
        name: [v.name for v in (*w.operands, *w.results) if v is not None]
        for name, w in work.items()
    }
    assert moved["a"] == ["dy", "x"]
    assert moved["dw"] == ["dw"]
    assert moved["dx"] == ["dy", "w", "dx"]  # dy once more


def test_a_weight_that_its_matmul_adds_costs_no_pass_of_its_own() -> None:
    plan = make_plan(
        traced("tiny"), parse_cluster("cpu:1"), seq=64, global_batch=2, pins=Pins(zero=0)
    )
    model = step_model(plan, parse_cluster("cpu:1"))
    ffn = next(u for u in model.stages[0] if u.name.endswith("ffn"))
    piece = plan.piece(next(i.piece for i in plan.instances if i.name == ffn.name))
    params = [i.value for i in piece.graph.inputs_of("param")]
    weights = sum(_bytes(v) for v in params if len(v.shape) == 2)
    assert ffn.work.added_bytes == weights > 0
    hbm = parse_cluster("cpu:1").device.hbm_bytes_per_s / 1e6
    assert ffn.accumulate_us == pytest.approx(3 * (ffn.bucket_bytes - weights) / hbm)
    wide = replace(plan, dtype="bf16", precision="master")
    assert all(u.work.added_bytes == 0 for u in step_model(wide, parse_cluster("cpu:1")).stages[0])
    # There a matmul of half precision adds to float32.
    added = [u.work.added_bytes for u in step_model(wide, parse_cluster("h200:1")).stages[0]]
    assert weights in added


def test_matmuls_of_few_rows_do_not_hide_the_gradients_that_they_add_to() -> None:
    """Every matmul of a piece sums over the tokens of a micro-batch, whatever its shape."""
    cluster, given = parse_cluster("h200:1"), {"global_batch": 4, "pins": Pins(zero=0)}
    exposed = {}
    for seq in (64, 512, 4096):
        plan = make_plan(traced("tiny"), cluster, seq=seq, **given)
        ffn = next(u for u in step_model(plan, cluster).stages[0] if u.name.endswith("ffn"))
        total, per_row = ffn.work.sums
        assert total == ffn.work.added_bytes > 0
        assert total / per_row == pytest.approx(seq * plan.micro_batch)
        hbm = cluster.device.hbm_bytes_per_s / 1e6
        assert ffn.sums_us == pytest.approx(exposed_sum_bytes(ffn.work, 1.0) / hbm)
        wide = exposed_sum_bytes(ffn.work, 2.0)
        exposed[seq] = exposed_sum_bytes(ffn.work, 1.0) / total
        assert ffn.pass_us("B") > ffn.work.backward.us + ffn.accumulate_us
        assert 0 < 2 * exposed[seq] * total * (1 - 1e-9) <= wide <= 1.1 * 4 * total * (1 + 1e-9)
    assert exposed[64] == pytest.approx(2 * 1.1) and exposed[64] > exposed[512] > exposed[4096]
    on_cpu = make_plan(traced("tiny"), parse_cluster("cpu:1"), seq=64, **given)
    assert all(u.sums_us == 0 for u in step_model(on_cpu, parse_cluster("cpu:1")).stages[0])


def test_the_passes_over_the_logits_come_after_the_matmuls() -> None:
    graph = next(g for name, g in traced("tiny").joints.items() if name == "head")
    cluster, sizes = parse_cluster("h200:1"), {"B": 4, "S": 4096}
    hbm, rate = cluster.device.hbm_bytes_per_s, cluster.device.matmul_rate("f32")
    ops = {op.target: op for op in graph.ops if op.target.startswith("mw.linear_cross_entropy")}
    logits = 4 * 4096 * 4 * graph.values[ops["mw.linear_cross_entropy"].inputs[1]].shape[0]
    assert len(ops) == 2 and isinstance(logits, int)
    costs = Costs(cluster, Mesh({}), sizes)
    features = float(graph.values[ops["mw.linear_cross_entropy"].inputs[0]].shape[-1])
    for op, passes, contracted in zip(ops.values(), (1, 2), (features, math.inf), strict=True):
        whole = [replicated(len(graph.values[n].shape)) for n in op.inputs]
        made = [replicated(len(v.shape)) for v in op.outputs]
        us = costs.op_us(op, tuple(whole), tuple(made), GraphWork(graph).of[op.output.name])
        reached = rate * cluster.device.depth_share(contracted)
        matmuls = number(flops(op, graph), sizes) / reached
        wanted = (matmuls + passes * logits / hbm) * 1e6 + cluster.device.launch_us
        assert us == pytest.approx(wanted, rel=1e-3)


def _bytes(value: Value) -> float:
    return number(num_elements(value.shape), {}) * ITEM_BYTES[value.dtype]


@pytest.mark.parametrize("vocab", (1_000, 100_000))
def test_an_embedding_reads_the_rows_of_its_tokens_not_its_table(vocab: int) -> None:
    lines = (
        "graph embed",
        '%tokens : i64[B, S] = input data "tokens"',
        f'%w : bf16[{vocab}, 64] = input param "w"',
        "%y : bf16[B, S, 64] = mw.embedding(%tokens, %w)",
        "return %y",
    )
    graph, cluster = parse_graph("\n".join(lines)), parse_cluster("h200:1")
    costs = Costs(cluster, Mesh({}), {"B": 2, "S": 4096})
    (op,), whole = graph.ops, [replicated(rank) for rank in (2, 2, 3)]
    found = costs.op_us(op, tuple(whole[:2]), (whole[2],), GraphWork(graph).of["y"])
    rows = 2 * 4096
    moved = 2 * rows * 64 * 2 + rows * 8  # read and written, and the tokens
    device = cluster.device
    assert found == pytest.approx(moved / device.hbm_bytes_per_s * 1e6 + device.launch_us)


def test_an_update_moves_each_byte_once_where_a_launch_does_it_all() -> None:
    """The norm reads 4 bytes of each element; the update reads master, gradient and moments, 16,
    and writes 12 and the copy, 2; clearing writes 4. Without masters all are in two bytes, and
    there is no copy; gradients may be in four. In float64 there is no such launch."""
    assert precision_of("bf16", "master", "f32", "f32", "adamw", "").fused == 4 + 16 + 12 + 2 + 4
    for rounding in ("nearest", "stochastic"):
        moved = precision_of("bf16", "pure", "bf16", "bf16", "adamw", rounding).fused
        assert moved == 2 + 8 + 6 + 2
        assert precision_of("bf16", "pure", "f32", "f32", "adamw", rounding).fused == moved + 6
    double = precision_of("f64", "pure", "f64", "f64", "adamw", "")
    assert double.fused == double.moved == 8 + 16 + 32 + 24 + 8


def test_updates_clip_copy_and_cast_apart_without_the_launch() -> None:
    """Lion has one state, AdamW two. Clipping reads and writes the gradient; the copy of masters
    reads them. Nearest rounding casts float32 gradients first. Stochastic rounding has weights,
    states and gradient in float32 beside: each is read and written, the rule works on those, and
    all but the gradient are read and written back."""
    norm, clip, clear = 4, 8, 4
    for optimizer, states in (("lion", 1), ("adamw", 2)):
        update = 4 * (2 + states) + 4 * (1 + states)
        found = precision_of("bf16", "master", "f32", "f32", optimizer, "")
        assert found.moved == norm + clip + update + 6 + clear
        found = precision_of("bf16", "pure", "bf16", "bf16", optimizer, "nearest")
        assert found.moved == (norm + clip + update + clear) / 2
        found = precision_of("bf16", "pure", "f32", "f32", optimizer, "nearest")
        assert found.moved == norm + clip + 6 + update / 2 + clear
        found = precision_of("bf16", "pure", "bf16", "bf16", optimizer, "stochastic")
        back = 6 * (1 + states)
        assert found.moved == (norm + clip + clear) / 2 + back + 6 + update + back


@pytest.mark.parametrize("cluster", ("h200:1", "cpu:1"))
def test_a_recurrence_takes_time_for_each_token(cluster: str) -> None:
    """One row of small states: twice the tokens take 1.1 us more for each of them on a GPU."""
    lines = (
        "graph scan",
        *(f'%{x} : f32[B, S, 2, 4] = input data "{x}"' for x in "qkv"),
        *(f'%{x} : f32[B, S, 2] = input data "{x}"' for x in ("g", "beta")),
        "%y : f32[B, S, 2, 4] = mw.recurrence(%q, %k, %v, %g, %beta, delta=False)",
        "return %y",
    )
    graph, hardware = parse_graph("\n".join(lines)), parse_cluster(cluster)
    (op,), placed = graph.ops, tuple(replicated(rank) for rank in (4, 4, 4, 3, 3))
    once, twice = (
        Costs(hardware, Mesh({}), {"B": 1, "S": length}).op_us(
            op, placed, (replicated(4),), GraphWork(graph).of["y"]
        )
        for length in (1000, 2000)
    )
    each = 1.1 if hardware.device.type == "cuda" else 0.0
    moved = 4 * (4 * 8 + 2 * 2) + 0.2 * 2 * 4 * 2 * 4 * 4  # a token's operands, and its states
    least = each + moved / hardware.device.hbm_bytes_per_s * 1e6
    assert (twice - once) / 1000 == pytest.approx(least, rel=1e-6)
