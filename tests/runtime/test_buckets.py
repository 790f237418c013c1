"""Flat buckets on one rank: what a shard's runs cover, gradients that add up in place, and the
digits of float64 parameters within a narrower model."""

from dataclasses import replace

import pytest
import torch

from meshwright.runtime.engine import mesh
from meshwright.runtime.engine.buckets import FlatBucket
from meshwright.runtime.engine.layout import Bucket, Entry, Layout, Param
from meshwright.runtime.optimizers import adamw
from meshwright.runtime.optimizers.optimizer import Optimizer
from meshwright.runtime.optimizers.options import OptimizerOptions

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


MIXED = replace(
    LAYOUT,
    dtype="bfloat16",
    master=True,
    reduce_dtype="float32",
    params=tuple(Param(name, (64,), (), "normal(0.0, 1.0)") for name in ("narrow", "wide")),
    buckets=tuple(
        Bucket(name, 64, (0,), (Entry(name, 0, (64,), (), decay=True),), dtype=dtype)
        for name, dtype in (("narrow", ""), ("wide", "float64"))
    ),
)


def test_a_float64_parameter_under_masters_is_updated_in_float64() -> None:
    cpu = torch.device("cpu")
    buckets = [FlatBucket(b, MIXED, seed=0, device=cpu) for b in MIXED.buckets]
    optimizer = Optimizer(buckets, MIXED, OptimizerOptions(clip=0.0))
    narrow, wide = buckets
    assert (narrow.grad_shard.dtype, wide.grad_shard.dtype) == (torch.float32, torch.float64)
    expected = torch.nn.Parameter(wide.shard.clone())
    reference = torch.optim.AdamW([expected], lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    gradient = torch.randn(64, dtype=torch.float64)
    for _ in range(3):
        wide.grad_shard.copy_(gradient)
        expected.grad = gradient.clone()
        optimizer.step(1.0, 1.0, 0.01)
        reference.step()
    assert torch.allclose(wide.shard, expected.detach(), rtol=1e-12, atol=0.0)


def test_no_launch_in_float32_updates_a_float64_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adamw.mesh, "device", lambda: torch.device("cuda"))
    monkeypatch.setattr(adamw, "missing_toolchain", lambda device: None)
    options, narrow = OptimizerOptions(), replace(MIXED, buckets=MIXED.buckets[:1])
    assert adamw.AdamW(options, narrow).fuses
    assert not adamw.AdamW(options, MIXED).fuses
    frozen = replace(MIXED.buckets[1], trainable=False)
    assert adamw.AdamW(options, replace(MIXED, buckets=(MIXED.buckets[0], frozen))).fuses
