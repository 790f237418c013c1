"""Counts compiled to numpy: what substitution gives, for numbers and for arrays of them."""

import numpy as np
import pytest
from families import traced

from meshwright.ir.optable import flops
from meshwright.ir.sizes import SYMBOLS
from meshwright.planner.cost import compiled, number


def test_compiled_counts_equal_substitution_at_every_size() -> None:
    graphs = traced("tiny-gemma2").joints.values()
    counts = {flops(op, graph) for graph in graphs for op in graph.ops}
    counts = {count for count in counts if not isinstance(count, int)}
    assert len(counts) > 5
    rows, tokens = np.meshgrid([1, 2, 7], [1, 5, 4096], indexing="ij")
    for count in counts:
        found = np.broadcast_to(compiled(count)(rows, tokens), rows.shape)
        for b, s, value in zip(rows.flat, tokens.flat, found.flat, strict=True):
            exact = count.subs({SYMBOLS["B"]: int(b), SYMBOLS["S"]: int(s)})
            assert value == pytest.approx(float(exact), rel=1e-12)
            assert number(count, {"B": int(b), "S": int(s)}) == float(exact)
