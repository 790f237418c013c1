"""Flat buckets on one rank: what a shard's runs cover, and gradients that add up in place."""

from dataclasses import replace

import pytest
import torch

from meshwright.runtime.engine import mesh
from meshwright.runtime.engine.buckets import FlatBucket
from meshwright.runtime.engine.layout import Bucket, Entry, Layout, Param

PARAMS = (
    Param("norm", (8,), (), "constant(1.0)"),
    Param("up", (8, 8), ((0, 1, "tp"),), "normal(0.0, 1.0)"),
    Param("down", (8, 8), ((1, 1, "tp"),), "normal(0.0, 1.0)"),
)
BUCKET = Bucket(
    "ffn",
    256,
    (0,),
    (
        Entry("norm", 0, (8,), partial=("tp",), decay=False),
        Entry("up", 64, (8, 8), partial=(), decay=True),
        Entry("down", 128, (8, 8), partial=(), decay=True),
    ),
)
LAYOUT = Layout(
    model="m",
    dtype="float64",
    mesh={"pp": 1, "dp": 1, "tp": 1},
    stage_ranks=(0,),
    micro_batch=1,
    num_microbatches=2,
    seq=8,
    vocab_size=8,
    zero=0,
    master=False,
    reduce_dtype="float64",
    flops_per_token=1.0,
    params=PARAMS,
    buckets=(BUCKET,),
)


@pytest.fixture(autouse=True)
def one_rank() -> None:
    mesh.start(LAYOUT.mesh, torch.device("cpu"))


def _bucket(zero: int = 0) -> FlatBucket:
    return FlatBucket(BUCKET, replace(LAYOUT, zero=zero), seed=0, device=torch.device("cpu"))


def test_runs_cover_the_shard_once_and_merge_what_is_alike() -> None:
    assert _bucket().runs(lambda e: e.decay) == [(0, 64, False), (64, 256, True)]


@pytest.mark.parametrize(("index", "runs"), [(0, [(0, 64), (64, 128)]), (1, [(0, 128)])])
def test_runs_of_half_a_bucket_count_from_its_start(index: int, runs: list) -> None:
    bucket = _bucket()
    bucket.index, bucket.shard_numel = index, 128
    assert [run[:2] for run in bucket.runs(lambda e: e.decay)] == runs


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_every_level_starts_from_the_same_values_and_sums_micro_batches(zero: int) -> None:
    bucket = _bucket(zero)
    views = bucket.params()
    assert torch.equal(views["up"], _bucket().params()["up"])
    bucket.expected = 2
    for _ in range(2):
        grads = bucket.grads()
        grads["norm"].add_(1.0)
        grads["down"].add_(2.0)
        bucket.reduce()
    bucket.finish_reductions()
    assert bucket.grad_shard[:8].tolist() == [2.0] * 8
    assert bucket.grad_shard[128:192].tolist() == [4.0] * 64
    assert float(bucket.grad_shard.sum()) == 16.0 + 256.0
    bucket.zero_grads()
    assert float(bucket.grad_shard.abs().sum()) == 0.0


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(("summed", "travels"), [(False, "float32"), (True, "bfloat16")])
def test_gradients_travel_in_the_reductions_dtype(
    zero: int, summed: bool, travels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks of equal gradients, played by collectives that double: the sum has one rounding
    more where bf16 travels, and none where float32 does."""
    layout = replace(LAYOUT, zero=zero, dtype="bfloat16", master=summed, reduce_dtype=travels)
    bucket = FlatBucket(BUCKET, layout, seed=0, device=torch.device("cpu"))
    bucket.group = group = object()  # type: ignore[assignment]
    monkeypatch.setattr("meshwright.runtime.engine.mesh.group", lambda *axes: group)
    bucket.expected, seen = 1, []

    def all_reduce(x: torch.Tensor, group: object, async_op: bool = False) -> None:
        seen.append(x.dtype)
        x.mul_(2)

    def reduce_scatter(
        target: torch.Tensor, x: torch.Tensor, group: object, async_op: bool = False
    ) -> None:
        seen.append(x.dtype)
        target.copy_(x).mul_(2)

    monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
    monkeypatch.setattr("torch.distributed.reduce_scatter_tensor", reduce_scatter)
    value = 1 + 2**-7 if travels == "float32" else 1 + 2**-12
    grads = bucket.grads()
    grads["norm"].fill_(value)  # partial over tp, so that both reductions double it
    grads["up"].fill_(value)
    bucket.reduce()
    bucket.finish_reductions()
    bucket.sum_homes(bucket.group)
    assert set(seen) == {getattr(torch, travels)} and len(seen) == 3
    once = value if travels == "float32" else 1.0
    assert bucket.grad_shard[:8].tolist() == [8 * once] * 8
    assert bucket.grad_shard[64:128].tolist() == [4 * once] * 64
    assert bucket.grad_shard.dtype is (torch.float32 if summed else torch.bfloat16)


def test_level_3_frees_what_it_gathered() -> None:
    bucket = _bucket(3)
    bucket.params()
    assert bucket.full is not None
    bucket.release()
    assert bucket.full is None
