"""Strategies read off factor rules."""

import pytest

from meshwright.ir.graph import Graph
from meshwright.ir.placement import format_placement
from meshwright.ir.text.graph_text import parse_graph
from meshwright.planner.sharding.strategies import Axis, strategies_of
from meshwright.planner.sharding.strides import strides_of

AXIS = Axis("tp", 2, {"B": 3, "S": 8})


def graph_of(*lines: str) -> Graph:
    return parse_graph("\n".join(["graph g", *lines]))


def found(graph: Graph, index: int = 0, axis: Axis = AXIS) -> dict[str, str]:
    strides = [(f, b) for (k, f), bs in strides_of(graph, axis).items() if k == index for b in bs]
    strategies, warning = strategies_of(graph.ops[index], graph, (axis,), {axis.name: strides})
    assert not warning
    return {
        s.name: "; ".join(map(format_placement, s.inputs))
        + " -> "
        + "; ".join(map(format_placement, s.outputs))
        for s in strategies
    }


def test_linear_has_columns_rows_and_sequence_but_no_rows_of_the_batch() -> None:
    graph = graph_of(
        '%x : bf16[B, S, 6] = input activation "x"',
        '%w : bf16[4, 6] = input param "w"',
        "%y : bf16[B, S, 4] = mw.linear(%x, %w)",
        "return %y",
    )
    assert found(graph) == {
        "replicated": "[{}, {}, {}]; [{}, {}] -> [{}, {}, {}]",
        "shard b1": "[{}, {tp}, {}]; [{}, {}] -> [{}, {tp}, {}]",
        "shard i": "[{}, {}, {tp}]; [{}, {tp}] -> [{}, {}, {}] partial {tp:sum}",
        "shard o": "[{}, {}, {}]; [{tp}, {}] -> [{}, {}, {tp}]",
    }


def test_attention_shards_heads_and_groups_of_heads() -> None:
    graph = graph_of(
        '%q : bf16[B, 4, S, 8] = input activation "q"',
        '%k : bf16[B, 2, S, 8] = input data "k"',
        '%v : bf16[B, 2, S, 8] = input data "v"',
        "%o : bf16[B, 4, S, 8]; %l : f32[B, 4, S] = mw.attention(%q, %k, %v, scale=1.0, "
        "causal=True, window=0, softcap=0.0)",
        "return %o",
    )
    strategies = found(graph)
    heads = "[{}, {tp}, {}, {}]"
    assert strategies["shard k"] == f"{heads}; {heads}; {heads} -> {heads}; [{{}}, {{tp}}, {{}}]"
    assert strategies["shard g"].startswith("[{}, {2:tp}, {}, {}]; [{}, {}, {}, {}]")
    assert not {"shard b", "shard s", "shard t", "shard d"} & set(strategies)


@pytest.mark.parametrize(("window", "halo"), [(1, ""), (3, "+2"), (5, "+4"), (6, None), (0, None)])
def test_a_window_within_a_shard_is_read_as_a_halo(window: int, halo: str | None) -> None:
    """Eight places over two ranks: at most the whole shard before is read, and given its share."""
    graph = graph_of(
        '%q : bf16[B, 4, S, 8] = input activation "q"',
        '%k : bf16[B, 2, S, 8] = input data "k"',
        "%o : bf16[B, 4, S, 8]; %l : f32[B, 4, S] = mw.attention(%q, %k, %k, scale=1.0, "
        f"causal=True, window={window}, softcap=0.0)",
        "%dq : bf16[B, 4, S, 8]; %dk : bf16[B, 2, S, 8]; %dv : bf16[B, 2, S, 8] = "
        "mw.attention_backward(%q, %q, %k, %k, %o, %l, scale=1.0, "
        f"causal=True, window={window}, softcap=0.0)",
        "return %dq",
    )
    axis, name = Axis("cp", 2, {"B": 3, "S": 8}), f"shard s beside t+{window - 1}"
    if halo is None:
        assert not any("beside" in n for k in (0, 1) for n in found(graph, k, axis))
        return
    cut, read = "[{}, {}, {cp}, {}]", f"[{{}}, {{}}, {{cp{halo}}}, {{}}]"
    made = read if not halo else f"[{{}}, {{}}, {{cp{halo}sum}}, {{}}]"
    forward, backward = found(graph, 0, axis)[name], found(graph, 1, axis)[name]
    assert forward == f"{cut}; {read}; {read} -> {cut}; [{{}}, {{}}, {{cp}}]"
    assert backward.endswith(f"-> {cut}; {made}; {made}")
    mirrored = Axis("cp", 2, {"B": 3, "S": 8}, mirrored=True)
    assert not any("beside" in n for n in found(graph, 0, mirrored))


def test_a_view_splits_and_merges_and_passes_sums_through() -> None:
    graph = graph_of(
        '%x : bf16[B, S, 4, 6] = input activation "x"',
        "%y : bf16[B, S, 24] = view(%x, size=[B, S, 24])",
        "return %y",
    )
    strategies = found(graph)
    assert "[{}, {}, {tp}, {}] -> [{}, {}, {tp}]" in strategies.values()
    assert "[{}, {}, {}, {tp}] -> [{}, {}, {4:tp}]" in strategies.values()
    assert (
        strategies["partial"]
        == "[{}, {}, {}, {}] partial {tp:sum} -> [{}, {}, {}] partial {tp:sum}"
    )


def test_thirds_of_a_fused_projection_are_offered_to_its_matmul() -> None:
    graph = graph_of(
        '%x : bf16[B, S, 6] = input activation "x"',
        '%w : bf16[12, 6] = input param "w"',
        "%y : bf16[B, S, 12] = mw.linear(%x, %w)",
        "%q : bf16[B, S, 4] = slice.Tensor(%y, dim=2, start=0, end=4)",
        "return %q",
    )
    assert "[{}, {}, {3:tp}] -> [{}, {}, {tp}]" in found(graph, 1).values()
    assert "[{}, {}, {}]; [{3:tp}, {}] -> [{}, {}, {3:tp}]" in found(graph).values()


def test_an_unknown_op_stays_replicated_with_its_line() -> None:
    graph = graph_of(
        '%x : bf16[B, S, 6] = input activation "x"',
        "%y : bf16[B, S, 6] = roll(%x)  # models/odd.py:7",
        "return %y",
    )
    (only,), warning = strategies_of(graph.ops[0], graph, (AXIS,))
    assert only.name == "replicated"
    assert "roll" in warning and "models/odd.py:7" in warning


def test_a_dim_that_does_not_divide_is_not_offered(tiny) -> None:
    odd = Axis("tp", 3, {"B": 3, "S": 8})
    graph = tiny.joints["ffn"]
    names = {s.name for op in graph.ops for s in strategies_of(op, graph, (odd,))[0]}
    assert names == {"replicated", "partial"}


def test_values_that_meet_again_ask_for_no_ever_finer_blocks() -> None:
    """Parts of 64 and 128 of one value, of which the first is repeated to meet the second."""
    graph = graph_of(
        '%x : bf16[B, S, 256] = input activation "x"',
        "%a : bf16[B, S, 64] = slice.Tensor(%x, dim=2, start=0, end=64)",
        "%b : bf16[B, S, 128] = slice.Tensor(%x, dim=2, start=128, end=256)",
        "%a1 : bf16[B, S, 64, 1] = unsqueeze(%a, dim=3)",
        "%a2 : bf16[B, S, 64, 2] = expand(%a1)",
        "%a3 : bf16[B, S, 128] = view(%a2)",
        "%y : bf16[B, S, 128] = add.Tensor(%a3, %b)",
        "return %y",
    )
    offered = strides_of(graph, AXIS)
    # The parts are a quarter and a half; one of the two of each repeated element may be cut.
    assert {k: sorted(offered[k, "d2"]) for k in (0, 1, 5)} == {
        0: [2, 32],
        1: [2, 4, 32, 64],
        5: [2, 32, 64],
    }
