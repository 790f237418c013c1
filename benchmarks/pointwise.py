"""Time that fused pointwise kernels take beside their reads and writes, on one GPU.

    python benchmarks/pointwise.py [--rows 16384 --columns 4096]

Each row: a function as torch.compile makes it one kernel, bf16, its time in a recording of many
calls over buffers larger than the cache, the time of its bytes at the rate of a copy read in the
same process, and the difference for an element in ps; medians of 9.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

SHAPES = ((65536, 768), (32768, 1600), (16384, 4096), (4096, 6400))
CALLS, BUFFERS_GIB = 12, 3.0


def copy(x: Tensor) -> Tensor:
    return x.clone()


def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def swiglu_backward(gate: Tensor, up: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    g, u, d = gate.float(), up.float(), dy.float()
    s = torch.sigmoid(g)
    return (d * u * s * (1 + g * (1 - s))).to(gate.dtype), (d * g * s).to(gate.dtype)


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def gelu_backward(x: Tensor, dy: Tensor) -> Tensor:
    return torch.ops.aten.gelu_backward(dy, x, approximate="tanh")


def gelu_erf(x: Tensor) -> Tensor:
    return F.gelu(x)


def gelu_erf_backward(x: Tensor, dy: Tensor) -> Tensor:
    return torch.ops.aten.gelu_backward(dy, x)


def geglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.gelu(gate, approximate="tanh") * up


def relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def norm(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    wide = x.float()
    rsqrt = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    return (wide * rsqrt * w.float()).to(x.dtype), rsqrt


def residual_norm(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    total = x + y
    return total, *norm(total, w)


def norm_backward(x: Tensor, dy: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    rsqrt = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    return norm_backward_kept(x, dy, w, rsqrt)


def norm_backward_kept(x: Tensor, dy: Tensor, w: Tensor, rsqrt: Tensor) -> tuple[Tensor, Tensor]:
    d = dy.float()
    normed, scaled = x.float() * rsqrt, d * w.float()
    mean = (scaled * normed).mean(-1, keepdim=True)
    return ((scaled - normed * mean) * rsqrt).to(x.dtype), (d * normed).sum(0)


def layer_norm(x: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    rsqrt = torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
    return (centred * rsqrt * w.float() + w.float()).to(x.dtype)


def column_sum(x: Tensor) -> Tensor:
    return x.float().sum(0)


def softcap(x: Tensor) -> Tensor:
    return 30 * torch.tanh(x / 30)


# The operands of [rows, columns] and the other ones; w: a weight, r: a statistic a row.
KERNELS: tuple[tuple[Callable, str, int], ...] = (
    (copy, "x", 2),
    (add, "xx", 3),
    (swiglu, "xx", 3),
    (swiglu_backward, "xxx", 5),
    (gelu, "x", 2),
    (gelu_backward, "xx", 3),
    (gelu_erf, "x", 2),
    (gelu_erf_backward, "xx", 3),
    (geglu, "xx", 3),
    (relu_squared, "x", 2),
    (softcap, "x", 2),
    (rope, "xww", 2),
    (norm, "xw", 2),
    (residual_norm, "xxw", 4),
    (norm_backward, "xxw", 3),
    (norm_backward_kept, "xxwr", 3),
    (layer_norm, "xw", 2),
    (column_sum, "x", 1),
)


def recorded_us(kernel: Callable, sets: Sequence[tuple[Tensor, ...]]) -> float:
    """Return us of a call, the median of 9 replays of a recording of CALLS calls."""
    for given in sets[:2]:
        kernel(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in range(CALLS):
            kernel(*sets[call % len(sets)])
    times = []
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / CALLS)
    return statistics.median(times[1:])


def _operands(kinds: str, rows: int, columns: int) -> list[tuple[Tensor, ...]]:
    shapes = {"x": (rows, columns), "w": (columns,), "r": (rows, 1)}
    size = kinds.count("x") * rows * columns * 2
    count = min(CALLS, max(2, int(BUFFERS_GIB * 2**30 / size)))
    return [
        tuple(
            torch.randn(
                shapes[kind], device="cuda", dtype=torch.float32 if kind == "r" else torch.bfloat16
            )
            for kind in kinds
        )
        for _ in range(count)
    ]


def main(shapes: Sequence[tuple[int, int]]) -> None:
    rate = 0.0
    print("| kernel | shape | us | of bytes | more, ps an element |\n" + "|---" * 5 + "|")
    for rows, columns in shapes:
        for kernel, kinds, passes in KERNELS:
            made = torch.compile(kernel, dynamic=False)
            us = recorded_us(made, _operands(kinds, rows, columns))
            moved = passes * rows * columns * 2
            if kernel is copy:
                rate = moved / us
                print(f"copy: {rate / 1e6:.2f} TB/s", flush=True)
            more = (us - moved / rate) / (rows * columns) * 1e6
            figures = f"{us:.1f} | {moved / rate:.1f} | {more:.2f}"
            print(f"| {kernel.__name__} | {rows} x {columns} | {figures} |", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--columns", type=int, default=4096)
    given = parser.parse_args()
    main(((given.rows, given.columns),) if given.rows else SHAPES)
