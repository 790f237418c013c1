"""The sharding ILP against brute force over every assignment of strategies."""

from itertools import product
from math import prod

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright.ir.graph import Graph, verify
from meshwright.ir.mesh import compute_mesh
from meshwright.ir.placement import Placement
from meshwright.ir.text.graph_text import format_graph, parse_graph, parse_placed_graph
from meshwright.planner.cost.graph_work import GraphWork
from meshwright.planner.cost.op_cost import Costs
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.sharding.boundary_layouts import Layout, layouts_of
from meshwright.planner.sharding.ilp import shard
from meshwright.planner.sharding.lower import lower
from meshwright.planner.sharding.nodes import Choice, Demands, Node, nodes_of
from meshwright.planner.sharding.objective import objective_us

BIG = {"B": 2, "S": 4096}
D = 512


def objective_of(
    graph: Graph, nodes: tuple[Node, ...], picked: tuple[Choice, ...], costs: Costs, price: float
) -> float | None:
    """The stated objective of one assignment, summed plainly; None where no collective leads."""
    pairs = list(zip(nodes, picked, strict=True))
    made = {v: p for n, c in pairs for v, p in zip(n.makes, c.strategy.outputs, strict=True)}
    work, params = GraphWork(graph), {i.value.name for i in graph.inputs_of("param")}
    moves: dict[tuple[str, Placement, Placement], float] = {}
    copies: set[tuple[str, Placement]] = set()
    for node, choice in pairs:
        for name, want in zip(node.reads, choice.strategy.inputs, strict=True):
            have, value = made[name], graph.values[name]
            if costs.redistribute_us(value, have, want) is None:
                return None
            path = costs.moves(value, have, want)
            moves.update(((name, m.src, m.dst), costs.move_us(value, m)) for m in path)
            sliced = path and all(m.kind == "slice" for m in path)
            copy = have if sliced else want
            if node.backward and (name in work.held or (name in params and copy != have)):
                copies.add((name, copy))
    resident = sum(c.bytes for c in picked)
    resident += sum(costs.local_bytes(graph.values[name], p) for name, p in copies)
    return sum(c.us for c in picked) + sum(moves.values()) + price * resident


def brute_force(graph: Graph, costs: Costs, price: float, demands: Demands) -> float:
    nodes, _ = nodes_of(graph, costs, demands)
    totals = (
        objective_of(graph, nodes, picked, costs, price)
        for picked in product(*(n.choices for n in nodes))
    )
    return min(total for total in totals if total is not None)


@st.composite
def joints(draw: st.DrawFn, most: int = 3) -> Graph:
    """x -> one to `most` ops -> y, and one to three backward ops: gradients of w and x."""
    lines = [
        "graph g",
        f'%x : bf16[B, S, {D}] = input activation "x"',
        f'%w : bf16[{D}, {D}] = input param "w"',
        f'%dy : bf16[B, S, {D}] = input grad "dy"',
    ]
    shape, now, before = f"bf16[B, S, {D}]", "x", "x"
    kinds = draw(
        st.lists(st.sampled_from(["linear", "silu", "add", "neg"]), min_size=1, max_size=most)
    )
    for k, kind in enumerate(kinds):
        call = {
            "linear": f"mw.linear(%{now}, %w)",
            "silu": f"silu(%{now})",
            "add": f"add.Tensor(%{now}, %{before})",
            "neg": f"neg(%{now})",
        }[kind]
        lines.append(f"%h{k} : {shape} = {call}")
        now, before = f"h{k}", now
    lines.append(f"%g : {shape} = mul.Tensor(%dy, %{before})")
    lines.append(f"%dw : bf16[{D}, {D}] = mw.linear_weight_grad(%g, %{now})")
    grad_x = draw(st.sampled_from(["dy", "g", "dx"]))
    if grad_x == "dx":
        lines.append(f"%dx : {shape} = mw.linear_input_grad(%g, %w)")
    lines.append(f"return %{now}, %{grad_x}, %dw")
    return verify(parse_graph("\n".join(lines)))


def check(graph: Graph, costs: Costs, price: float, demands: Demands) -> None:
    best = brute_force(graph, costs, price, demands)
    found = shard(graph, costs, price, demands)
    assert found.objective_us == pytest.approx(best, rel=1e-6)
    assert found.bound_us <= best * (1 + 1e-9)
    lowered, placements = lower(graph, found, costs)
    text = format_graph(lowered, placements)
    again = parse_placed_graph(text)
    assert again == (lowered, placements) and format_graph(*again) == text
    recomputed = objective_us(*again, costs, price, demands.num_microbatches)
    assert recomputed == pytest.approx(found.objective_us, rel=1e-9)


SIDES = st.integers(0, 2)


def cut_layouts(
    graph: Graph, costs: Costs, sides: tuple[int, int], mirrored: bool = False
) -> tuple[Layout, Layout]:
    """A layout of each cut of a graph, by number among those that its readers offer.

    What reads the output is not known here: it may lie as the input does, which has its shape.
    """
    offered = layouts_of(graph, costs, mirrored)
    entry, exit_ = (offered[min(side, len(offered) - 1)] for side in sides)
    return entry, exit_ if graph.inputs_of("grad") else ()


@settings(max_examples=24, deadline=None, derandomize=True)
@given(
    graph=joints(),
    sides=st.tuples(SIDES, SIDES),
    price=st.sampled_from([0.0, 1e-6, 1e-4]),
    spec=st.sampled_from(["h200:8", "cpu:4"]),
    num_microbatches=st.sampled_from([1, 8]),
)
def test_the_ilp_is_brute_force(graph, sides, price, spec, num_microbatches) -> None:
    costs = Costs(parse_cluster(spec), compute_mesh(2), BIG)
    demands = Demands(*cut_layouts(graph, costs, sides), num_microbatches=num_microbatches)
    assume(prod(len(n.choices) for n in nodes_of(graph, costs, demands)[0]) <= 20_000)
    check(graph, costs, price, demands)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    graph=joints(most=1),
    sides=st.tuples(SIDES, SIDES),
    price=st.sampled_from([0.0, 1e-6, 1e-4]),
    mesh=st.sampled_from([compute_mesh(2, 2), compute_mesh(4, inner=2), compute_mesh(1, 4)]),
    mirrored=st.booleans(),
)
def test_the_ilp_is_brute_force_on_two_axes(graph, sides, price, mesh, mirrored) -> None:
    costs = Costs(parse_cluster("h200:8"), mesh, BIG)
    layouts = cut_layouts(graph, costs, sides, mirrored)
    demands = Demands(*layouts, num_microbatches=8, mirrored=mirrored)
    assume(prod(len(n.choices) for n in nodes_of(graph, costs, demands)[0]) <= 60_000)
    check(graph, costs, price, demands)


@pytest.mark.parametrize("price", [0.0, 1e-5])
@pytest.mark.parametrize("side", [0, 1])
def test_a_partial_log_sum_exp_costs_what_its_way_costs(side: int, price: float) -> None:
    graph = parse_graph(
        "\n".join(
            [
                "graph g",
                '%x : bf16[B, S, 64] = input activation "x"',
                '%labels : i64[B, S] = input data "labels"',
                '%w : bf16[32000, 64] = input param "w"',
                "%lse : f32[B, S]; %picked : f32[B, S] = "
                "mw.linear_cross_entropy(%x, %w, %labels, softcap=0.0)",
                "%nll : f32[B, S] = sub.Tensor(%lse, %picked)",
                "%e : f32[B, S] = exp(%lse)",
                "%both : f32[B, S] = mul.Tensor(%nll, %e)",
                "%loss : f32[] = sum(%both)",
                "return %loss, -, -",
            ]
        )
    )
    costs = Costs(parse_cluster("h200:8"), compute_mesh(2), BIG)
    (entry, _) = cut_layouts(graph, costs, (side, 0))
    check(graph, costs, price, Demands(entry))


def windowed(window: int) -> Graph:
    """Attention of heads of one value to themselves within a window, and its gradients."""
    rows, heads = f"bf16[B, S, {D}]", f"bf16[B, {D // 8}, S, 8]"
    split, apart = f"bf16[B, S, {D // 8}, 8]", "transpose.int(%{}, dim0=1, dim1=2)"
    options = f"scale=1.0, causal=True, window={window}, softcap=0.0"
    lines = [
        "graph g",
        f'%x : {rows} = input activation "x"',
        f'%dy : {rows} = input grad "dy"',
        f"%xs : {split} = view(%x, size=[B, S, {D // 8}, 8])",
        f"%q : {heads} = {apart.format('xs')}",
        f"%o : {heads}; %l : f32[B, {D // 8}, S] = mw.attention(%q, %q, %q, {options})",
        f"%os : {split} = {apart.format('o')}",
        f"%y : {rows} = view(%os, size=[B, S, {D}])",
        f"%dys : {split} = view(%dy, size=[B, S, {D // 8}, 8])",
        f"%do : {heads} = {apart.format('dys')}",
        f"%dq : {heads}; %dk : {heads}; %dv : {heads} = "
        f"mw.attention_backward(%do, %q, %q, %q, %o, %l, {options})",
        f"%a : {heads} = add.Tensor(%dq, %dk)",
        f"%b : {heads} = add.Tensor(%a, %dv)",
        f"%ds : {split} = {apart.format('b')}",
        f"%dx : {rows} = view(%ds, size=[B, S, {D}])",
        "return %y, %dx",
    ]
    return verify(parse_graph("\n".join(lines)))


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("window", [0, 64, 8000])
@pytest.mark.parametrize("price", [0.0, 1e-5])
def test_attention_over_context_is_brute_force(price: float, window: int, mirrored: bool) -> None:
    graph, demands = windowed(window), Demands(mirrored=mirrored)
    costs = Costs(parse_cluster("h200:8"), compute_mesh(1, 2), {"B": 16, "S": 8192})
    check(graph, costs, price, demands)
    lowered, _ = lower(graph, shard(graph, costs, price, demands), costs)
    kinds = {op.attr("kind") for op in lowered.ops} - {None}
    assert ({"halo", "reduce_halo"} == kinds) == (window == 64 and not mirrored)
