"""Rates of the attention kernels on one GPU, and the blocks that suit them.

    python benchmarks/attention.py [--tune | --heads]

Each row: forward and backward of one attention as programs call it, beside compiled FlexAttention
and, where it takes the rule, cuDNN; medians of 20, bf16, random data. TF/s count the pairs that the
mask lets through, backward as 2.5 times forward. The error is of o, dq, dk and dv against float32.
--tune tries blocks for each kernel and head size, after compiling them in as many processes as
there are cores, and prints the fastest first. --heads reads rates by the size of a head instead,
causal and with a window of a quarter of the row, which other kernels have.
"""

import argparse
import itertools
import multiprocessing
import os
import statistics
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from meshwright.runtime.engine.kernels import attention_tuning as tuning
from meshwright.runtime.engine.kernels import triton_attention as ours
from meshwright.runtime.engine.kernels.attention import (
    attention,
    attention_backward,
    backend_of,
    reference,
    reference_backward,
    triton_backward,
)


class Shape(NamedTuple):
    name: str
    rows: int
    heads: int
    key_heads: int
    length: int
    size: int
    window: int = 0
    softcap: float = 0.0

    @property
    def rule(self) -> ours.Rule:
        return ours.Rule(self.size**-0.5, True, self.window, self.softcap)

    @property
    def flops(self) -> float:
        seen = min(self.window or self.length, self.length)
        pairs = self.rows * self.heads * (self.length * seen - seen * seen / 2)
        return 4 * pairs * self.size


SHAPES = (
    Shape("Llama, 128", 4, 32, 8, 4096, 128),
    Shape("Llama, 64", 4, 32, 8, 4096, 64),
    Shape("Gemma 3 4B, global", 4, 8, 4, 4096, 256),
    Shape("Gemma 3 4B, local", 4, 8, 4, 4096, 256, 1024),
    Shape("Gemma 3 4B, local, 16K", 1, 8, 4, 16384, 256, 1024),
    Shape("Gemma 3 4B, global, 16K", 1, 8, 4, 16384, 256),
    Shape("Gemma 2 9B, cap", 2, 16, 8, 4096, 256, 0, 50.0),
    Shape("Gemma 2 9B, cap, window 4096", 1, 16, 8, 8192, 256, 4096, 50.0),
    Shape("Mistral, window 4096", 1, 32, 8, 16384, 128, 4096),
    Shape("GPT-OSS, window 128", 2, 64, 8, 4096, 64, 128),
    Shape("Phi 3, 96, window 2047", 2, 32, 32, 4096, 96, 2047),
)
TUNED_ON = {size: Shape("tune", 4, 4096 // size // 2, 4, 4096, size, 1024) for size in tuning.TUNED}
TRIED = {
    "forward": [
        (queries, keys, warps, stages)
        for queries, keys in ((128, 128), (128, 64), (128, 32), (64, 64), (64, 32), (64, 128))
        for warps, stages in ((4, 2), (4, 3), (8, 2), (8, 3))
    ],
    "keys": [
        (queries, keys, warps, stages)
        for queries, keys in ((32, 64), (32, 128), (64, 64), (64, 128), (16, 64))
        for warps, stages in ((4, 1), (4, 2), (8, 1), (8, 2), (8, 3))
    ],
    "queries": [
        (queries, keys, warps, stages)
        for queries, keys in ((128, 64), (128, 32), (64, 64), (64, 32), (64, 16))
        for warps, stages in ((4, 1), (4, 2), (8, 1), (8, 2), (8, 3))
    ],
}


def operands(shape: Shape) -> list[Tensor]:
    """Return q, k, v, do as a model has them: heads beside each other within a token."""
    torch.manual_seed(0)
    counts = (shape.heads, shape.key_heads, shape.key_heads, shape.heads)
    sizes = ((shape.rows, shape.length, count, shape.size) for count in counts)
    made = (torch.randn(each, device="cuda", dtype=torch.bfloat16) for each in sizes)
    return [x.transpose(1, 2) for x in made]


def median_ms(run: Callable[[], object], count: int = 20) -> float:
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    times = []
    for _ in range(count):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def parts(shape: Shape) -> dict[str, Callable[[], object]]:
    """Return the three kernels as calls."""
    q, k, v, do = operands(shape)
    rule = shape.rule
    o, lse = ours.forward(q, k, v, rule)
    along = (do.float() * o.float()).sum(-1)
    return {
        "forward": lambda: ours.forward(q, k, v, rule),
        "keys": lambda: ours.keys_backward(do, q, k, v, lse, along, rule),
        "queries": lambda: ours.queries_backward(do, q, k, v, lse, along, rule),
    }


def _with(size: int, kernel: str, blocks: tuple[int, ...]) -> None:
    usual = tuning.Tuning(*[tuning.Blocks(64, 32, 4, 1)] * 3)
    tuning.TUNED[size] = usual._replace(**{kernel: tuning.Blocks(*blocks)})


def _compile(task: tuple[int, str, tuple[int, ...]]) -> None:
    size, kernel, blocks = task
    _with(size, kernel, blocks)
    try:
        parts(TUNED_ON[size])[kernel]()
    except Exception:  # registers or shared memory that the card does not have
        pass


def tune() -> None:
    """Print the fastest blocks of each kernel and head size."""
    tasks = [(size, kernel, b) for size in TUNED_ON for kernel in TRIED for b in TRIED[kernel]]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        list(pool.imap_unordered(_compile, tasks))
    print("compiled", len(tasks), flush=True)
    for size, kernel in itertools.product(TUNED_ON, TRIED):
        found = []
        for blocks in TRIED[kernel]:
            _with(size, kernel, blocks)
            try:
                found.append((median_ms(parts(TUNED_ON[size])[kernel], 7), blocks))
            except Exception:
                continue
        best = sorted(found)[:4]
        print(size, kernel, "; ".join(f"{ms:.3f} {b}" for ms, b in best), flush=True)


def compare() -> None:
    """Print the table."""
    head = "attention, backend, forward ms: TF/s, backward ms: TF/s, FlexAttention, cuDNN, error"
    print(f"| {head.replace(', ', ' | ')} |\n{'|---' * 7}|")
    for shape in SHAPES:
        print(row(shape), flush=True)
        torch.cuda.empty_cache()


HEADS = (8, 16, 32, 48, 64, 72, 80, 96, 112, 128, 160, 192, 256)


def by_heads() -> None:
    """Print rates by the size of a head, of the kernel that programs call."""
    print(
        "| head | length | window | backend | forward TF/s | backward TF/s |\n" + "|---" * 6 + "|"
    )
    for length, windowed, size in itertools.product((4096, 16384), (False, True), HEADS):
        window = length // 4 if windowed else 0
        shape = Shape("", max(1, 16384 // length), 16, 16, length, size, window)
        q, k, v, do = operands(shape)
        rule = shape.rule._asdict()
        rule.pop("start")
        name = backend_of(q, True, window, 0.0)
        o, lse = attention(q, k, v, **rule)
        given = do, q, k, v, o, lse
        ahead = median_ms(partial(attention, q, k, v, **rule), 9)
        back = median_ms(partial(attention_backward, *given, **rule), 9)
        rates = (times * shape.flops / ms / 1e9 for times, ms in ((1.0, ahead), (2.5, back)))
        cells = size, length, window, name, *(f"{rate:.0f}" for rate in rates)
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def row(shape: Shape) -> str:
    q, k, v, do = operands(shape)
    rule = shape.rule._asdict()
    rule.pop("start")
    o, lse = ours.forward(q, k, v, shape.rule)
    found = triton_backward(do, q, k, v, o, lse, *shape.rule)
    wanted = exact(shape, q, k, v, do)
    error = max(_off(a, b) for a, b in zip((o, *found), wanted, strict=True))
    ahead = median_ms(lambda: ours.forward(q, k, v, shape.rule))
    back = median_ms(lambda: triton_backward(do, q, k, v, o, lse, *shape.rule))
    name = backend_of(q, True, shape.window, shape.softcap)
    beside = (
        ""
        if name != "cudnn"
        else _both(
            lambda: attention(q, k, v, **rule),
            lambda: attention_backward(do, q, k, v, o, lse, **rule),
        )
    )
    rates = [f"{ahead:.2f}: {shape.flops / ahead / 1e9:.0f}"]
    rates.append(f"{back:.2f}: {2.5 * shape.flops / back / 1e9:.0f}")
    cells = [shape.name, name, *rates, flex(shape, q, k, v, do), beside, f"{error:.1e}"]
    return f"| {' | '.join(cells)} |"


def _both(ahead: Callable[[], object], back: Callable[[], object]) -> str:
    return f"{median_ms(ahead):.2f} + {median_ms(back):.2f}"


def _off(a: Tensor, b: Tensor) -> float:
    return float((a.float() - b).norm() / b.norm())


def exact(shape: Shape, q: Tensor, k: Tensor, v: Tensor, do: Tensor) -> list[Tensor]:
    """Return o, dq, dk, dv in float32, row by row and group by group of heads."""
    outs: list[list[Tensor]] = []
    group = shape.heads // shape.key_heads
    for b, h in itertools.product(range(shape.rows), range(shape.key_heads)):
        heads = slice(h * group, (h + 1) * group)
        one = (q[b : b + 1, heads], k[b : b + 1, h : h + 1], v[b : b + 1, h : h + 1])
        wide = [x.float() for x in one]
        scale, causal, window, softcap, _ = shape.rule
        o, lse = reference(*wide, scale, causal, window, softcap)
        d = do[b : b + 1, heads].float()
        rest = reference_backward(d, *wide, o, lse, scale, causal, window, softcap)
        outs.append([o, *rest])
    joined = [torch.cat(kind, 1) for kind in zip(*outs, strict=True)]
    return [x.view(shape.rows, -1, *x.shape[2:]) for x in joined]


def flex(shape: Shape, q: Tensor, k: Tensor, v: Tensor, do: Tensor) -> str:
    """Return the times of compiled FlexAttention with autograd."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    window, cap = shape.window or shape.length, shape.softcap

    def seen(b, h, i, j):  # type: ignore[no-untyped-def]
        return (j <= i) & (i - j < window)

    def score(s, b, h, i, j):  # type: ignore[no-untyped-def]
        return cap * torch.tanh(s / cap)

    torch._dynamo.reset()
    mask = create_block_mask(seen, None, None, shape.length, shape.length, device="cuda")
    run = torch.compile(flex_attention, dynamic=False)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    given = {"score_mod": score if cap else None, "block_mask": mask, "enable_gqa": True}
    o = run(*leaves, **given)
    with torch.no_grad():
        ahead = median_ms(lambda: run(*leaves, **given))
    back = median_ms(lambda: torch.autograd.grad(o, leaves, do, retain_graph=True))
    return f"{ahead:.2f} + {back:.2f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--heads", action="store_true")
    given = parser.parse_args()
    tune() if given.tune else by_heads() if given.heads else compare()
