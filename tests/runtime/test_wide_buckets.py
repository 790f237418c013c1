"""Parameters in float64 within a narrower model keep their digits in gradients and updates."""

from dataclasses import replace

import pytest
import torch

from meshwright.runtime.engine import mesh
from meshwright.runtime.engine.buckets import FlatBucket
from meshwright.runtime.engine.layout import Bucket, Entry, Layout, Param
from meshwright.runtime.optimizers import adamw
from meshwright.runtime.optimizers.optimizer import Optimizer
from meshwright.runtime.optimizers.options import OptimizerOptions

BUCKETS = tuple(
    Bucket(name, 64, (0,), (Entry(name, 0, (64,), (), decay=True),), dtype=dtype)
    for name, dtype in (("narrow", ""), ("wide", "float64"))
)
LAYOUT = Layout(
    model="m",
    dtype="bfloat16",
    mesh={"pp": 1, "dp": 1, "tp": 1},
    stage_ranks=(0,),
    micro_batch=1,
    num_microbatches=1,
    seq=8,
    vocab_size=8,
    zero=0,
    master=True,
    reduce_dtype="float32",
    flops_per_token=1.0,
    params=tuple(Param(b.name, (64,), (), "normal(0.0, 1.0)") for b in BUCKETS),
    buckets=BUCKETS,
)


def test_a_float64_parameter_under_masters_is_updated_in_float64() -> None:
    cpu = torch.device("cpu")
    mesh.start(LAYOUT.mesh, cpu)
    buckets = [FlatBucket(b, LAYOUT, seed=0, device=cpu) for b in BUCKETS]
    optimizer = Optimizer(buckets, LAYOUT, OptimizerOptions(clip=0.0))
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
    options, narrow = OptimizerOptions(), replace(LAYOUT, buckets=BUCKETS[:1])
    assert adamw.AdamW(options, narrow).fuses
    assert not adamw.AdamW(options, LAYOUT).fuses
    frozen = replace(BUCKETS[1], trainable=False)
    assert adamw.AdamW(options, replace(LAYOUT, buckets=(BUCKETS[0], frozen))).fuses
