"""The memory frontier against brute force over every set of ops that may be computed again."""

from itertools import chain, combinations

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.ir.graph import Graph, verify
from meshwright.ir.mesh import compute_mesh
from meshwright.ir.ops.registry import definition
from meshwright.ir.phases import forward_ops
from meshwright.ir.text.graph_text import parse_graph
from meshwright.planner.cost.op_cost import Costs
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.remat.frontier import Weights, _Problem, frontier, hull
from meshwright.planner.solver import source_side


@st.composite
def joints(draw: st.DrawFn) -> Graph:
    """One to six forward ops, views and ops of two outputs among them, and what reads them."""
    lines = [
        "graph g",
        '%x : bf16[B, 8] = input activation "x"',
        '%dy : bf16[B, 8] = input grad "dy"',
    ]
    made = ["x"]
    count = draw(st.integers(1, 6))
    for k in range(count):
        a, b = draw(st.sampled_from(made)), draw(st.sampled_from(made))
        kind = draw(st.sampled_from(["silu", "add", "view", "two"]))
        call = {
            "silu": f"%h{k} : bf16[B, 8] = silu(%{a})",
            "add": f"%h{k} : bf16[B, 8] = add.Tensor(%{a}, %{b})",
            "view": f"%h{k} : bf16[B, 8] = view(%{a}, size=[B, 8])",
            "two": f"%h{k} : bf16[B, 8]; %e{k} : bf16[B, 8] = mw.attention(%{a}, %{b}, %{a}, "
            "scale=1.0, causal=True, window=0, softcap=0.0)",
        }[kind]
        lines.append(call)
        made += [f"h{k}", f"e{k}"] if kind == "two" else [f"h{k}"]
    for k, name in enumerate(draw(st.lists(st.sampled_from(made), max_size=4))):
        lines.append(f"%g{k} : bf16[B, 8] = mul.Tensor(%dy, %{name})")
    lines.append(f"return %{made[-1]}, -")
    return parse_graph("\n".join(lines))


@st.composite
def weighted(draw: st.DrawFn) -> tuple[Graph, Weights]:
    graph = draw(joints())
    small = st.integers(0, 9)
    ops = forward_ops(graph)
    ps = {op.output.name: 0 if definition(op).free else draw(small) for op in ops}
    names = [v.name for op in ops for v in op.outputs] + ["x"]
    return graph, Weights(ps, {name: draw(st.integers(1, 9)) for name in names})


def points(graph: Graph, weights: Weights) -> set[tuple[int, int]]:
    """(bytes, again_ps) of every set of ops that may be computed again, walked from what is read.

    Stated plainly: an op whose result is wanted runs again if it is in the set (a view always);
    otherwise its wanted results are kept.
    """
    ops = forward_ops(graph)
    maker = {v.name: op for op in ops for v in op.outputs}
    read = {n for op in graph.ops if op.output.name not in maker for n in op.inputs}
    free = [op for op in ops if definition(op).free]
    others = [op for op in ops if not definition(op).free]
    found = set()
    for some in chain.from_iterable(combinations(others, k) for k in range(len(others) + 1)):
        again = {op.output.name for op in (*some, *free)}
        wanted, size, ps = set(read), 0, 0
        for op in reversed(ops):
            mine = [v.name for v in op.outputs if v.name in wanted]
            if mine and op.output.name in again:
                ps += weights.again_ps[op.output.name]
                wanted |= set(op.inputs)
            else:
                size += sum(weights.bytes[n] for n in mine)
        found.add((size + (weights.bytes["x"] if "x" in wanted else 0), ps))
    return found


def lower_hull(found: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """Vertices by the definition: less of one only for more of the other, below all chords."""
    rest = sorted(found)
    best = [p for p in rest if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in rest)]

    def above(p, a, b) -> bool:
        return (p[1] - a[1]) * (b[0] - a[0]) >= (b[1] - a[1]) * (p[0] - a[0])

    return [
        p
        for p in best
        if not any(a[0] < p[0] < b[0] and above(p, a, b) for a in best for b in best)
    ]


@given(weighted())
@settings(max_examples=200, deadline=None)
def test_the_vertices_are_those_of_brute_force(given_) -> None:
    graph, weights = given_
    found = hull(graph, weights)
    expected = lower_hull(points(graph, weights))
    assert [(c.bytes, c.again_ps) for c in reversed(found)] == expected


@given(weighted(), st.integers(0, 20), st.integers(1, 20))
@settings(max_examples=200, deadline=None)
def test_every_price_is_met_exactly(given_, of_byte, of_ps) -> None:
    graph, weights = given_
    found = _Problem(graph, weights).best(of_ps, of_byte)
    least = min(of_ps * ps + of_byte * size for size, ps in points(graph, weights))
    assert of_ps * found.again_ps + of_byte * found.bytes == least


NODES = st.sampled_from(["source", "a", "b", "c", "d", "sink"])
CAPACITIES = st.one_of(st.none(), st.integers(0, 9), st.integers(0, 2**80))


@given(st.dictionaries(st.tuples(NODES, NODES), CAPACITIES, min_size=4, max_size=16))
@settings(max_examples=200, deadline=None)
def test_a_cut_is_the_largest_of_the_least_ones(given_) -> None:
    arcs = {(a, b): c for (a, b), c in given_.items() if a != b and "sink" != a and b != "source"}
    arcs |= {("source", "a"): 5, ("d", "sink"): 7}
    arcs = {(a, b): 3 if a == "source" and b == "sink" else c for (a, b), c in arcs.items()}
    net = nx.DiGraph()
    for (a, b), c in arcs.items():
        net.add_edge(a, b, **({} if c is None else {"capacity": c}))
    found = source_side([(a, b, c) for (a, b), c in arcs.items()], "source", "sink")
    cut = [c for (a, b), c in arcs.items() if a in found and b not in found]
    try:
        least, (wanted, _) = nx.minimum_cut(net, "source", "sink")
    except nx.NetworkXUnbounded:
        return  # arcs that are never cut lead from end to end
    total = sum(c or 0 for c in arcs.values())
    assert None not in cut and sum(cut) <= least + total * 2**-50
    if total < 2**62:
        assert found == wanted


def test_a_llama_block_keeps_no_view_and_more_only_where_it_saves_time(llama) -> None:
    costs = Costs(parse_cluster("h200:8"), compute_mesh(1), {"B": 1, "S": 4096})
    from meshwright.ir.placement import replicated

    for graph in llama.joints.values():
        verify(graph)
        placements = {n: replicated(len(v.shape)) for n, v in graph.values.items()}
        found = frontier(graph, placements, costs)
        sizes, times = [c.bytes for c in found], [c.again_ps for c in found]
        assert sizes == sorted(sizes, reverse=True) and times == sorted(times)
        assert not any(definition(graph.producer[n]).free for c in found for n in c.saved)
