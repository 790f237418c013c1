"""What torch.compile runs as one kernel is alive at once: the peak of a function counts it so."""

from meshwright.ir.text.graph_text import parse_graph
from meshwright.planner.cost.phase_work import PhaseWork

GRAPH = parse_graph(
    """graph g
%x : f32[B, S, 4] = input activation "x"
%w : f32[4, 4] = input param "w"
%a : f32[B, S, 4] = mw.linear(%x, %w)
%b : f32[B, S, 4] = silu(%a)
%c : f32[B, S, 4] = mw.linear(%b, %w)
%d : f32[B, S, 4] = neg(%a)
%e : f32[B, S, 4] = mul.Tensor(%d, %c)
%f : f32[B, S, 4] = mw.linear(%e, %w)
%g : f32[B, S, 4] = add.Tensor(%d, %f)
return %g
"""
)


def test_ops_that_read_the_same_value_run_as_early_as_what_they_read_exists() -> None:
    """`neg` with `silu`, behind `a`; `mul` waits for `c`, and the sum for `f`."""
    made = [[op.output.name for op in kernel] for kernel in PhaseWork(GRAPH).kernels]
    assert made == [["a"], ["b", "d"], ["c"], ["e"], ["f"], ["g"]]
    assert {name for kernel in made for name in kernel} == {op.output.name for op in GRAPH.ops}
