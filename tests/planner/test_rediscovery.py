"""Known placements come out of the search, asserted on placements alone."""

import time
from dataclasses import replace
from functools import partial

import pytest
import torch
from sampling import mostly_long
from torch import nn

from meshwright.ir.capture.export import trace
from meshwright.ir.errors import PlanError
from meshwright.ir.graph import verify
from meshwright.ir.mesh import compute_mesh
from meshwright.ir.placement import Placement, Shard
from meshwright.ir.text.graph_text import format_graph, parse_placed_graph
from meshwright.models.config import DecoderConfig
from meshwright.models.decoder import Decoder
from meshwright.planner.cost.op_cost import Costs
from meshwright.planner.hardware.cluster import collective_us
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.sharding.chain import Lowered, ShardedModel, default_price, shard_model
from meshwright.planner.sharding.objective import items_of, objective_us
from meshwright.planner.sharding.sequence_orders import ORDERS, orders_of
from meshwright.planner.sharding.sub_axes import inner_ranks

AXIS = "tp"


def plan(traced, **changes) -> ShardedModel:
    given = dict(
        mesh=changes.pop("mesh", None) or compute_mesh(changes.pop("tp", 2)),
        cluster=parse_cluster("h200:8"),
        micro_batch=1,
        seq=4096,
    )
    given |= dict(num_microbatches=8, price=None)
    return shard_model(traced.segmented, traced.joints, **(given | changes))


def alone_us(traced, seq=4096) -> float:
    """What a resident byte is worth to a device alone, in us."""
    given = traced.joints, traced.segmented, parse_cluster("h200:8")
    return default_price(*given, {"B": 1, "S": seq})


def params(piece: Lowered) -> dict[str, int | None]:
    """The sharded dim of each parameter, by logical name."""
    return {
        i.ref: piece.placements[i.value.name].shard_dim(AXIS)
        for i in piece.graph.inputs_of("param")
    }


def moved(piece: Lowered) -> list[tuple[str, Placement]]:
    """(kind, placement before) of each redistribution."""
    return [
        (str(op.attr("kind")), piece.placements[op.inputs[0]])
        for op in piece.graph.ops
        if op.target == "redistribute"
    ]


def activation(piece: Lowered) -> Placement:
    (x,) = piece.graph.inputs_of("activation")
    return piece.placements[x.value.name]


MEGATRON = {
    "attention.q.weight": 0,
    "attention.k.weight": 0,
    "attention.v.weight": 0,
    "attention.o.weight": 1,
    "ffn.gate.weight": 0,
    "ffn.up.weight": 0,
    "ffn.down.weight": 1,
    "lm_head.weight": 0,
}


def assert_megatron(model: ShardedModel) -> None:
    found = {k: v for piece in model.lowered.values() for k, v in params(piece).items()}
    assert {k: found[k] for k in MEGATRON} == MEGATRON
    for piece in model.lowered.values():
        weights = {i.value.name for i in piece.graph.inputs_of("param")}
        reads = {op.inputs[0] for op in piece.graph.ops if op.target == "redistribute"}
        assert not weights & reads, "a weight is gathered"
    head = model.lowered[model.instances[-1]]
    assert [p.partial_op(AXIS) for kind, p in moved(head) if kind == "all_reduce"].count("lse") == 1


@pytest.mark.parametrize("tp", mostly_long([2, 4, 8], 8))
def test_priced_bytes_give_column_and_row_sharding_and_a_vocabulary_parallel_loss(
    llama, tp
) -> None:
    assert_megatron(plan(llama, tp=tp, price=alone_us(llama)))


@pytest.mark.parametrize("tp", mostly_long([2, 4], 4))
def test_pinned_weights_give_the_same_without_a_price(llama, tp) -> None:
    assert_megatron(plan(llama, tp=tp, price=0.0, shard_matmul_weights=True))


def test_the_sequence_is_sharded_between_blocks_when_that_is_cheaper(llama) -> None:
    model = plan(llama, tp=4)
    block = model.lowered["ffn"]
    assert activation(block).shard_dim(AXIS) == 1
    kinds = sorted(kind for kind, _ in moved(block))
    assert kinds == ["all_gather", "all_gather", "reduce_scatter", "reduce_scatter"]


def slow_scatter():
    """An H200 host whose halves of an all_reduce cost as much as the whole."""
    cluster = parse_cluster("h200:8")
    curves = tuple(
        replace(c, points=tuple((b, us * 4) for b, us in c.points))
        if c.collective in ("all_gather", "reduce_scatter")
        else c
        for c in cluster.levels[0].curves
    )
    return replace(cluster, levels=(replace(cluster.levels[0], curves=curves),))


def test_the_sequence_stays_whole_between_blocks_when_that_is_cheaper(llama) -> None:
    model = plan(llama, tp=2, cluster=slow_scatter(), price=0.0, shard_matmul_weights=True)
    block = model.lowered["ffn"]
    assert activation(block).shard_dim(AXIS) is None
    assert "all_reduce" in {kind for kind, _ in moved(block)}


def test_free_bytes_give_sequence_sharding_with_replicated_weights(llama) -> None:
    block = plan(llama, tp=4, price=0.0).lowered["ffn"]
    assert set(params(block).values()) == {None}
    assert activation(block).shard_dim(AXIS) == 1
    assert not moved(block)
    grads = [block.placements[g].partial_op(AXIS) for g in block.graph.outputs[2:]]
    assert set(grads) == {"sum"}


@pytest.mark.parametrize("tp", mostly_long([2, 4], 4))
@pytest.mark.parametrize("changes", [{}, {"shard_matmul_weights": True}, {"price": 0.0}])
def test_every_piece_verifies_round_trips_and_costs_what_it_says(tiny, tp, changes) -> None:
    given = dict(
        mesh=compute_mesh(tp),
        cluster=parse_cluster("cpu:4"),
        micro_batch=2,
        seq=64,
        num_microbatches=2,
    )
    model = plan(tiny, **(given | changes))
    costs = Costs(parse_cluster("cpu:4"), compute_mesh(tp), {"B": 2, "S": 64})
    for piece in model.lowered.values():
        verify(piece.graph)
        text = format_graph(piece.graph, piece.placements)
        graph, placements = parse_placed_graph(text)
        assert (graph, placements) == (piece.graph, piece.placements)
        assert set(placements) == set(graph.values)
        cost = objective_us(graph, placements, costs, model.price, 2)
        assert cost == pytest.approx(piece.objective_us, rel=1e-9)
    total = sum(model.lowered[name].objective_us for name in model.instances)
    assert model.objective_us == pytest.approx(total)
    assert 0 <= model.objective_us - model.bound_us < 1e-4 * model.objective_us


def test_layouts_agree_at_every_cut(llama) -> None:
    model = plan(llama, tp=8)
    pieces = [model.lowered[name] for name in model.instances]
    for left, right in zip(pieces, pieces[1:], strict=False):
        assert left.boundary_out == right.boundary_in
        assert left.placements[left.graph.outputs[0]] == activation(right)
        (dy,) = left.graph.inputs_of("grad")
        assert right.placements[right.graph.outputs[1]] == left.placements[dy.value.name]
    loss = pieces[-1]
    assert loss.placements[loss.graph.outputs[0]].is_replicated(AXIS)


@pytest.mark.parametrize("changes", [{}, {"shard_matmul_weights": True}])
def test_a_tied_table_lies_the_same_in_all_its_homes(tied, changes) -> None:
    given = dict(
        mesh=changes.pop("mesh", None) or compute_mesh(changes.pop("tp", 2)),
        cluster=parse_cluster("cpu:4"),
        micro_batch=2,
        seq=64,
        num_microbatches=2,
    )
    model = plan(tied, **(given | changes))
    homes = {}
    for instance, name in zip(tied.segmented.instances, model.instances, strict=True):
        piece = model.lowered[name]
        inputs = piece.graph.inputs_of("param")
        for param, item, grad in zip(instance.params, inputs, piece.graph.outputs[2:], strict=True):
            pair = (piece.placements[item.value.name], piece.placements[grad])
            homes.setdefault(param, []).append(pair)
    shared = [found for found in homes.values() if len(found) > 1]
    assert shared and all(len(set(found)) == 1 for found in shared)


def test_the_same_question_gives_the_same_answer(tiny) -> None:
    first, second = (plan(tiny, tp=2, seq=64, shard_matmul_weights=True) for _ in range(2))
    assert first == second


def test_one_device_on_the_axis_needs_no_solver(llama, monkeypatch) -> None:
    monkeypatch.setattr("meshwright.planner.solver._ortools", None)
    model = plan(llama, tp=1)
    assert model.instances == tuple(i.segment for i in llama.segmented.instances)
    for piece in model.lowered.values():
        assert all(p.is_replicated(AXIS) for p in piece.placements.values())
        assert piece.graph == llama.joints[piece.segment]


def test_a_sequence_that_does_not_divide_is_never_cut(tiny) -> None:
    model = plan(tiny, tp=2, seq=33, shard_matmul_weights=True)
    crossing = [placed for p in model.lowered.values() for placed in p.boundary_in]
    assert crossing and all(not placed.dims[1] for placed in crossing)


def exchanged(piece: Lowered) -> set[tuple[str, str]]:
    """(axis, kind) of the redistributions of a piece that move data between ranks."""
    moves = [op for op in piece.graph.ops if op.target == "redistribute"]
    return {(str(op.attr("axis")), str(op.attr("kind"))) for op in moves} - {
        ("cp", "slice"), ("tp", "slice"),
    }  # fmt: skip


def slower_links(times: float):
    """An H200 host whose collectives take `times` as long."""
    cluster = parse_cluster("h200:8")
    level = cluster.levels[0]
    curves = tuple(
        replace(c, points=tuple((b, us * times) for b, us in c.points)) for c in level.curves
    )
    rate = level.bytes_per_s / times
    return replace(cluster, levels=(replace(level, curves=curves, bytes_per_s=rate),))


def test_attention_exchanges_sequence_for_heads_where_links_are_fast(llama) -> None:
    """Ulysses: heads suffice, and no rank has more than its share of the causal square."""
    model = plan(llama, mesh=compute_mesh(context=4), seq=32768)
    assert exchanged(model.lowered["attention"]) == {("cp", "all_to_all")}
    assert exchanged(model.lowered["ffn"]) == set()


def test_attention_gathers_keys_and_values_where_links_are_slow(llama) -> None:
    """Fewer bytes than four exchanges, for a rank that waits for the last queries."""
    model = plan(llama, mesh=compute_mesh(context=2), cluster=slower_links(60.0), seq=4096)
    kinds = exchanged(model.lowered["attention"])
    assert kinds == {("cp", "all_gather"), ("cp", "reduce_scatter")}


def test_attention_gathers_keys_and_values_where_heads_do_not_suffice(llama) -> None:
    """Sixteen ranks cannot share eight keys of heads, nor four queries of each."""
    model = plan(llama, mesh=compute_mesh(context=16), cluster=parse_cluster("h200:8x2"), seq=32768)
    assert ("cp", "all_to_all") not in exchanged(model.lowered["attention"])


def test_tensor_and_context_at_once_are_megatron_and_ulysses(llama) -> None:
    """A block of 32,768 tokens on 2 x 2: weights cut over tensor, attention by heads over both."""
    mesh = compute_mesh(tensor=2, context=2)
    price = alone_us(llama, 32768)
    model = plan(llama, mesh=mesh, seq=32768, shard_matmul_weights=True, price=price)
    assert_megatron(model)
    attention = model.lowered["attention"]
    assert ("cp", "all_to_all") in exchanged(attention)
    (op,) = (op for op in attention.graph.ops if op.target == "mw.attention")
    heads = attention.placements[op.inputs[0]].dims[1]
    assert [shard.axis for shard in heads] == ["tp", "cp"]


@pytest.fixture(scope="module")
def grouped():
    """A layer with 32 heads of queries over 8 of keys and values."""
    config = DecoderConfig(dim=4096, layers=1, heads=32, kv_heads=8, ffn=14336, vocab=32000)
    return trace(partial(Decoder, config), "grouped", "bf16", 32000)


def test_more_ranks_than_kv_heads_hold_one_each_and_share_it(grouped) -> None:
    """16 = 8 x 2: keys and values lie on the outer part, queries on both parts."""
    inner = inner_ranks(grouped.joints.values(), 16)
    assert [inner_ranks(grouped.joints.values(), tp) for tp in (4, 8, 16, 32, 64)] == [
        1,
        1,
        2,
        4,
        1,
    ]
    mesh, cluster = compute_mesh(16, inner=inner), parse_cluster("h200:8x2")
    split, whole = (
        plan(grouped, mesh=mesh, cluster=cluster, shard_matmul_weights=True)
        for mesh in (mesh, compute_mesh(16))
    )
    attention = split.lowered["attention"]
    cuts = {i.ref: axes_of(attention, i.value.name) for i in attention.graph.inputs_of("param")}
    assert cuts["attention.q.weight"] == cuts["attention.o.weight"] == {"tp", "tq"}
    assert "tp" in cuts["attention.k.weight"] & cuts["attention.v.weight"]
    (op,) = (op for op in attention.graph.ops if op.target == "mw.attention")
    assert [attention.placements[n].dims[1] for n in op.inputs] == [
        (Shard("tp"), Shard("tq", 8)), (Shard("tp"),), (Shard("tp"),)
    ]  # fmt: skip
    assert split.objective_us < whole.objective_us


def test_heads_that_no_tensor_rank_divides_are_said_to_stay_whole(grouped) -> None:
    model = plan(grouped, mesh=compute_mesh(3), cluster=parse_cluster("cpu:3"), seq=64)
    (line,) = (line for line in model.coverage if "stays whole" in line)
    assert "each of 3 tensor ranks" in line and "8 KV heads nor the 4 queries" in line
    assert not any("stays whole" in line for line in plan(grouped, tp=2).coverage)


def axes_of(piece: Lowered, name: str) -> set[str]:
    return {s.axis for shards in piece.placements[name].dims for s in shards}


def test_a_block_on_three_axes_is_planned_in_seconds() -> None:
    """4 x 2 x 2: 32,768 tokens cut over context, heads over both parts of tensor."""
    config = DecoderConfig(dim=4096, layers=1, heads=32, kv_heads=2, ffn=14336, vocab=32000)
    block = trace(partial(Decoder, config), "block", "bf16", 32000)
    mesh, began = compute_mesh(4, 4, inner_ranks(block.joints.values(), 4)), time.process_time()
    model = plan(block, mesh=mesh, cluster=parse_cluster("h200:8x2"), seq=32768)
    assert str(mesh) == "cp=4 tp=2 tq=2" and time.process_time() - began < 20
    assert not model.lowered["attention"].branched
    assert model.objective_us == pytest.approx(model.bound_us, rel=1e-6)


class SharedBlocks(Decoder):
    """Every layer is the first one (ALBERT, Lan et al. 2020)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.layers = nn.ModuleList([self.layers[0]] * config.layers)


@pytest.mark.long
def test_twelve_shared_blocks_are_planned_in_seconds() -> None:
    """Each parameter of a block has twelve homes: their common placements are not all tried."""
    config = DecoderConfig(dim=256, layers=12, heads=8, ffn=1024, vocab=512)
    model = trace(partial(SharedBlocks, config), "shared", "bf16", 512)
    began = time.process_time()
    found = plan(model, tp=2, shard_matmul_weights=True)
    assert time.process_time() - began < 20
    homes: dict[str, set] = {}
    for instance, piece in zip(model.segmented.instances, found.instances, strict=True):
        low = found.lowered[piece]
        for name, item in zip(instance.params, low.graph.inputs_of("param"), strict=True):
            homes.setdefault(name, set()).add(low.placements[item.value.name])
    assert len(found.instances) == 26 and all(len(placed) == 1 for placed in homes.values())
    assert_megatron(found)


def queries(piece: Lowered) -> Placement:
    (op,) = (op for op in piece.graph.ops if op.target == "mw.attention")
    return piece.placements[op.inputs[0]]


def test_queries_that_stay_are_mirrored_and_heads_that_move_are_not(llama) -> None:
    """Mirrored shards balance the causal square; to put exchanged chunks in order costs copies."""
    gathered = {"mesh": compute_mesh(context=2), "cluster": slower_links(60.0), "seq": 4096}
    by_heads = {"mesh": compute_mesh(context=4), "seq": 32768}
    for given, mirrored in ((gathered, True), (by_heads, False)):
        each = {order: plan(llama, order=order, **given) for order in (*ORDERS, None)}
        assert each[None].objective_us == min(each[o].objective_us for o in ORDERS)
        x = activation(each[None].lowered["attention"])
        assert x.shard("cp") == Shard("cp", 1, mirrored)
    assert queries(plan(llama, **gathered).lowered["attention"]).dims[2] == (Shard("cp", 1, True),)


def test_the_slowest_rank_of_a_causal_attention_sets_its_price(llama) -> None:
    """The last of 16 shards does 31/16 of the mean, a mirrored one the mean.

    Prices are of 16 rows, whose blocks keep all multiprocessors busy. With one row a multiprocessor
    would wait for the longest block.
    """
    given = {"mesh": compute_mesh(context=16), "cluster": parse_cluster("h200:8x2"), "seq": 65536}
    us = {}
    for order in ORDERS:
        model = plan(llama, order=order, **given)
        piece = model.lowered["attention"]
        costs = Costs(given["cluster"], given["mesh"], {"B": 1, "S": 65536})
        items = items_of(piece.graph, piece.placements, costs, 8)
        (op,) = (op for op in piece.graph.ops if op.target == "mw.attention")
        many = Costs(given["cluster"], given["mesh"], {"B": 16, "S": 65536})
        us[order] = items_of(piece.graph, piece.placements, many, 8).op_us[op.output.name]
        assert items.total_us(model.price) == pytest.approx(piece.objective_us, rel=1e-9)
    assert us["contiguous"] / us["mirrored"] == pytest.approx(2 - 1 / 16, rel=1e-3)


def test_an_order_that_does_not_divide_is_contiguous_or_refused(tiny) -> None:
    mesh = compute_mesh(context=4)
    assert orders_of(tiny.joints.values(), mesh, 36) == ("contiguous",)
    assert orders_of(tiny.joints.values(), mesh, 40) == ORDERS
    assert orders_of(tiny.joints.values(), compute_mesh(4), 40) == ("contiguous",)
    with pytest.raises(PlanError) as raised:
        plan(tiny, mesh=mesh, seq=36, order="mirrored")
    assert "cut S=36 into 8 chunks" in str(raised.value) and "take 32 or 40" in str(raised.value)


@pytest.fixture(scope="module")
def windowed():
    """A layer whose queries see 4096 keys."""
    config = DecoderConfig(
        dim=4096, layers=1, heads=32, kv_heads=8, ffn=14336, vocab=32000, window=4096
    )
    return trace(partial(Decoder, config), "windowed", "bf16", 32000)


def test_a_window_exchanges_one_window_with_the_neighbour(windowed) -> None:
    """As long as it lies in the shard before; its price does not grow with the sequence."""
    us, given = {}, {"mesh": compute_mesh(context=4), "shard_matmul_weights": False}
    for seq in (32768, 65536):
        piece = plan(windowed, seq=seq, **given).lowered["attention"]
        assert exchanged(piece) == {("cp", "halo"), ("cp", "reduce_halo")}
        costs = Costs(parse_cluster("h200:8"), given["mesh"], {"B": 1, "S": seq})
        move = next(op for op in piece.graph.ops if op.attr("kind") == "halo")
        src, dst = (piece.placements[n] for n in (move.inputs[0], move.output.name))
        size = costs.local_bytes(move.output, dst) - costs.local_bytes(move.output, src)
        assert size == pytest.approx(2 * 8 * 128 * 4095)
        device, whole = costs.cluster.device, costs.local_bytes(move.output, dst)
        copy_us = 2 * whole / device.hbm_bytes_per_s * 1e6 + device.launch_us
        us[seq] = costs.redistribute_us(move.output, src, dst) - copy_us
    sent_us = collective_us(costs.cluster, "send_recv", size, 2)
    assert us[32768] == pytest.approx(sent_us) and us[65536] == pytest.approx(sent_us)
    narrow = plan(windowed, seq=8192, **given).lowered["attention"]
    assert not {kind for _, kind in exchanged(narrow)} & {"halo", "reduce_halo"}


class Gru(nn.Module):
    """Cuts what it multiplies by its weights into parts, one for each gate."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)
        self.layer = nn.GRU(16, 16, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(tokens))[0])


def test_weights_that_cannot_stay_cut_are_named_with_their_pin() -> None:
    traced = trace(Gru, "gru", "f32", 32, seq=3, alone=True)
    said = (
        r"shard_weights=1: .* its 3 .* \(layer.weight_ih_l0, .*\) cut over tp=2 .*; leave shard_w"
    )
    with pytest.raises(PlanError, match=said):
        plan(traced, seq=3, shard_matmul_weights=True)
    assert plan(traced, seq=3).lowered
