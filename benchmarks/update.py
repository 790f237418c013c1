"""AdamW's update of eight layers of a Llama of 7B on a GPU: one launch for all against a launch a
run with passes of their own for the copy, for rounding and for clearing.

    python benchmarks/update.py

Prints ms (median of 20) and TB/s by the bytes that the one launch moves.
"""

from types import SimpleNamespace

import torch
from attention import median_ms

from meshwright.runtime.engine.boxes import pieces_of
from meshwright.runtime.engine.layout import Param
from meshwright.runtime.optimizers.fused_adamw import FusedAdamW
from meshwright.runtime.optimizers.options import Group, OptimizerOptions
from meshwright.runtime.optimizers.rounding import round_run
from meshwright.runtime.optimizers.rule import Part, Run, widened
from meshwright.runtime.optimizers.triton_adamw import adamw_

LAYERS = 8
SHAPES = [(4096, 4096)] * 2 + [(1024, 4096)] * 2 + [(14336, 4096)] * 3 + [(4096,)] * 2
BF16, F32 = torch.bfloat16, torch.float32
# Weights, gradients, whether forward reads a copy, rounding, bytes of an element.
KINDS = {
    "masters": (F32, F32, True, "nearest", 16 + 12 + 2 + 4),
    "bf16": (BF16, BF16, False, "nearest", 8 + 6 + 2),
    "bf16, stochastic": (BF16, BF16, False, "stochastic", 8 + 6 + 2),
}


def bucket_of(number: int, weight: torch.dtype, grad: torch.dtype, copied: bool) -> SimpleNamespace:
    """Return a layer's bucket, with a run a parameter."""
    total = sum(torch.Size(shape).numel() for shape in SHAPES)
    w, m = (1e-2 * torch.randn(total, device="cuda", dtype=weight) for _ in range(2))
    v = m.float().square().to(weight)
    g = 1e-2 * torch.randn(total, device="cuda", dtype=grad)
    runs, at = [], 0
    for n, shape in enumerate(SHAPES):
        size = torch.Size(shape).numel()
        param = Param(f"{number}.{n}", shape, (), "normal(0.0, 1.0)")
        parts = tuple(Part(param, 0, piece) for piece in pieces_of(shape, (), 0, size))
        part = slice(at, at + size)
        states = {"exp_avg": m[part], "exp_avg_sq": v[part]}
        group = Group("", 1.0, 0.1)
        runs.append(Run("", group, at, at + size, parts, w[part], g[part], states))
        at += size
    shard = w.to(BF16) if copied else w
    return SimpleNamespace(shard=shard, clears_its_shard=True, runs=runs, grad=g, weights=w)


def apart(buckets: list[SimpleNamespace], options: OptimizerOptions, copied: bool) -> None:
    """Update with a launch a run, and further passes."""
    for bucket in buckets:
        for run in bucket.runs:
            wide = widened(run) if options.rounding == "stochastic" else run
            adamw_(
                wide.weights, wide.grad, *wide.states.values(), scale=0.5, lr=1e-4, decay=0.1,
                betas=(0.9, 0.95), eps=1e-8, count=7,
            )  # fmt: skip
            if wide is not run:
                round_run(run, wide, (), 0, 7)
    for bucket in buckets:
        if copied:
            bucket.shard.copy_(bucket.weights)
        bucket.grad.zero_()


def show(kind: str) -> None:
    """Print the times of both ways for one kind of weights."""
    weight, grad, copied, rounding, per = KINDS[kind]
    options = OptimizerOptions(rounding=rounding)
    buckets = [bucket_of(n, weight, grad, copied) for n in range(LAYERS)]
    fused = FusedAdamW([(b, b.runs) for b in buckets], options)
    ways = {
        "apart": lambda: apart(buckets, options, copied),
        "one launch": lambda: fused.update(1e-4, 7, 0.5),
    }
    size = per * sum(bucket.weights.numel() for bucket in buckets)
    for way, run in ways.items():
        ms = median_ms(run)
        print(f"{kind}, {way:10s} {ms:8.2f} ms {size / ms / 1e9:6.2f} TB/s", flush=True)


if __name__ == "__main__":
    print(torch.cuda.get_device_name(), torch.__version__)
    for name in KINDS:
        show(name)
        torch.cuda.empty_cache()
