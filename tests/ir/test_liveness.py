"""The one walk over liveness: of values, and of the storages that views share."""

from meshwright.ir.liveness import last_reads, live_after, storage_of
from meshwright.ir.text.graph_text import parse_graph

GRAPH = parse_graph(
    """graph g
%x : f32[B, 4] = input activation "x"
%a : f32[B, 4] = neg(%x)
%v : f32[4, B] = transpose.int(%a, dim0=0, dim1=1)
%b : f32[B, 4] = neg(%a)
%c : f32[4, B] = neg(%v)
%d : f32[B, 4] = neg(%b)
return %c, %d
"""
)


def test_values_are_read_last_where_they_are_and_outputs_outlive_all() -> None:
    found = last_reads([op.inputs for op in GRAPH.ops], GRAPH.outputs)
    assert found == {"x": 0, "a": 2, "v": 3, "b": 4, "c": 5, "d": 5}


def test_a_storage_is_read_as_long_as_a_view_of_it() -> None:
    reads = [[storage_of(name, GRAPH) for name in op.inputs] for op in GRAPH.ops]
    found = last_reads(reads, [storage_of(name, GRAPH) for name in GRAPH.outputs])
    assert found == {"x": 0, "a": 3, "b": 4, "c": 5, "d": 5}


def test_what_is_live_after_each_op_in_the_order_it_is_made() -> None:
    found = live_after(GRAPH.ops, GRAPH.outputs, {"a", "b", "d"})
    assert found == [("a",), ("a",), ("b",), ("b",), ("d",)]
