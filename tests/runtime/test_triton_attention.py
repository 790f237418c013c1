"""The Triton kernels of attention against the reference, in Triton's interpreter: no GPU."""

import itertools

import pytest
from triton_runs import run_interpreted

pytest.importorskip("triton")

# Heads, heads of keys, queries, keys, start, size of a head: odd lengths, shards, padded heads.
SHAPES = [(4, 2, 35, 35, 0, 8), (2, 1, 20, 50, 23, 24)]
# Causal, window, soft-cap.
RULES = [(True, 5, 0.0), (True, 17, 3.0), (False, 0, 0.0)]

SCRIPT = f"""
import itertools, torch
from meshwright.runtime.engine.kernels import attention_tuning as tuning
from meshwright.runtime.engine.kernels import triton_attention as ours
from meshwright.runtime.engine.kernels.attention import reference, reference_backward
from meshwright.runtime.engine.kernels.fused_attention import triton_backward

blocks = map(tuning.Blocks, (32, 16, 32), (16, 32, 16), (4,) * 3, (1,) * 3)
tuning.TUNED = {{64: tuning.Tuning(*blocks)}}
torch.manual_seed(0)
for shape, (causal, window, cap), at_once in itertools.product({SHAPES}, {RULES}, (1, 99)):
    ours.blocks_at_once = lambda *_, number=at_once: number
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

    from meshwright.runtime.engine.kernels import attention_tuning as ours

    device = torch.device("cpu")
    for size in (64, 128, 160, 256):
        capped, plain = (ours.keys_blocks(size, device, capped) for capped in (True, False))
        assert plain == ours.tuned(size, device).keys
        assert (capped == ours.CAPPED[256]) == (size > 128) == (capped != plain)


def test_blocks_are_those_that_the_cost_model_counts() -> None:
    from meshwright.planner.cost import attention_blocks
    from meshwright.planner.cost.attention_blocks import KEYS, QUERIES
    from meshwright.runtime.engine.kernels import attention_tuning as ours

    for blocks, group, at_once in itertools.product((1, 15, 16, 64, 200), (1, 2, 6, 8), (1, 132)):
        counted = attention_blocks.key_parts(blocks, group, at_once)
        assert counted == ours.key_parts(blocks, group, at_once)
        assert counted == 1 or counted * blocks <= at_once
    assert ours.key_parts(16, 8, 132) == 8 and ours.key_parts(64, 8, 132) == 2
    assert ours.CAPPED[256].keys == KEYS // 2
    for size, tuning in ours.TUNED.items():
        queries = QUERIES * (2 if size > 128 else 1)
        assert (tuning.forward.queries, tuning.queries.queries) == (queries, queries)
        assert tuning.keys.keys == KEYS
