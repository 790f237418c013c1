"""The Triton kernels of attention against the reference, in Triton's interpreter: no GPU."""

import pytest
from triton_runs import run_interpreted

pytest.importorskip("triton")

# Heads, heads of keys, queries, keys, start, size of a head: odd lengths, shards, padded heads.
SHAPES = [(4, 2, 35, 35, 0, 8), (2, 1, 20, 50, 23, 24)]
# Causal, window, soft-cap.
RULES = [(True, 5, 0.0), (True, 17, 3.0), (False, 0, 0.0)]

SCRIPT = f"""
import itertools, torch
from meshwright.runtime.engine.kernels import triton_attention as ours
from meshwright.runtime.engine.kernels.attention import reference, reference_backward
from meshwright.runtime.engine.kernels.fused_attention import triton_backward

ours.TUNED = {{64: ours.Tuning(*map(ours.Blocks, (32, 16, 32), (16, 32, 16), (4,) * 3, (1,) * 3))}}
torch.manual_seed(0)
for shape, (causal, window, cap) in itertools.product({SHAPES}, {RULES}):
    heads, key_heads, length, count, start, size = shape
    q, do = torch.randn(2, 1, length, heads, size).transpose(2, 3)
    k, v = torch.randn(2, 1, key_heads, count, size)
    given = (0.3, causal, window, cap, start)
    o, lse = ours.forward(q, k, v, ours.Rule(*given))
    found = (o, lse, *triton_backward(do, q, k, v, o, lse, *given))
    q, do, k, v = (x.double() for x in (q, do, k, v))
    o, lse = reference(q, k, v, *given)
    wanted = (o, lse, *reference_backward(do, q, k, v, o, lse, *given))
    off = max(float((a - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True))
    assert off < 1e-5, (shape, given, off)
print("equal")
"""


def test_kernels_are_the_reference_in_float32() -> None:
    run_interpreted(SCRIPT)


def test_a_soft_cap_takes_blocks_of_its_own_with_heads_above_128() -> None:
    import torch

    from meshwright.runtime.engine.kernels import triton_attention as ours

    device = torch.device("cpu")
    for size in (64, 128, 160, 256):
        capped, plain = (ours.keys_blocks(size, device, capped) for capped in (True, False))
        assert plain == ours.tuned(size, device).keys
        assert (capped == ours.CAPPED[256]) == (size > 128) == (capped != plain)


def test_blocks_are_those_that_the_cost_model_counts() -> None:
    from meshwright.planner.cost.op_cost import KEYS, QUERIES
    from meshwright.runtime.engine.kernels import triton_attention as ours

    for size, tuning in ours.TUNED.items():
        queries = QUERIES * (2 if size > 128 else 1)
        assert (tuning.forward.queries, tuning.queries.queries) == (queries, queries)
        assert tuning.keys.keys == KEYS
