"""Matmuls by shape on one GPU, between copies, as a step has them.

    python benchmarks/matmul_shapes.py OUT.csv [--between 0 0.25 0.6] [--kinds narrow split]

narrow: the products of models of 768 to 4,096 features, on 512 to 65,536 tokens. split: those of
decoders of 4,096 to 14,336 features under tp of 1 to 8. Each product is timed forward and as both
gradients in bf16, recorded several times over sets of operands with copies between them that take
the given share of the time, as power limits a card that does nothing but matmuls; one row each of
share, kind, m, n, k, us and Tflop/s. Not a part of the package.
"""

import argparse
import csv
import statistics
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import torch

TOKENS = {"narrow": (512, 2048, 16384, 65536), "split": (2048, 16384)}
# (features in, features out) of a linear.
NARROW = (
    *((768, 768), (768, 3072), (3072, 768), (896, 4864), (4864, 896), (896, 128), (1024, 3072)),
    *((3072, 1024), (1152, 6912), (6912, 1152), (1280, 5120), (5120, 1280), (1536, 1536)),
    *((1536, 8960), (8960, 1536), (2048, 2048), (2048, 8192), (8192, 2048), (2048, 512)),
    *((4096, 4096), (4096, 14336), (14336, 4096), (4096, 1024)),
)
DIMS, RANKS = (4096, 8192, 14336), (2, 4, 8)
SETS, CALLS, REPEATS = 3, 9, 5
COPY_BYTES_PER_S = 4.2e12
LARGEST = 2**31  # elements of operands and results of one set


def shapes(kind: str) -> Iterator[tuple[int, int, int]]:
    """Give tokens, features in and features out of linears."""
    if kind == "narrow":
        linears = NARROW
    else:
        linears = tuple(
            linear
            for dim, ranks in product(DIMS, RANKS)
            for local in (dim // ranks,)
            for linear in ((dim, 3 * local), (local, dim), (dim, 4 * local), (4 * local, dim))
        )
    for tokens, (into, out) in product(TOKENS[kind], linears):
        if tokens * (into + out) < LARGEST:
            yield tokens, into, out


def products(tokens: int, into: int, out: int) -> Iterator[tuple[str, int, int, int, Callable]]:
    """Give the three products of a linear: kind, rows, columns, what is contracted, and a call
    that takes the number of its operands."""
    x, w, dy = (
        [torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for _ in range(SETS)]
        for shape in ((tokens, into), (out, into), (tokens, out))
    )
    yield "forward", tokens, out, into, lambda k: x[k] @ w[k].T
    yield "input gradient", tokens, into, out, lambda k: dy[k] @ w[k]
    yield "weight gradient", out, into, tokens, lambda k: dy[k].T @ x[k]


def recorded_us(call: Callable[[int], object], copy: Callable[[], object]) -> float:
    """Return the us of one call and one copy: the median of replays of a recording of CALLS."""

    def body() -> None:
        for k in range(CALLS):
            call(k % SETS)
            copy()

    body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    times = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / CALLS * 1e3)
    return statistics.median(times)


def measured_us(call: Callable[[int], object], share: float, buffers: list[torch.Tensor]) -> float:
    """Return the us of a call where copies take so large a share of the time."""
    alone = recorded_us(call, lambda: None)
    if share == 0.0:
        return alone
    source, target = buffers
    wanted = alone * 1e-6 * share / (1 - share) * COPY_BYTES_PER_S / 2
    size = max(1, min(source.numel(), int(wanted)))

    def copy() -> object:
        return target[:size].copy_(source[:size])

    return recorded_us(call, copy) - recorded_us(lambda _: None, copy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--between", nargs="+", type=float, default=[0.25])
    parser.add_argument("--kinds", nargs="+", choices=tuple(TOKENS), default=list(TOKENS))
    arguments = parser.parse_args()
    buffers = [torch.zeros(2**33, device="cuda", dtype=torch.int8) for _ in range(2)]
    warm = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(100):
        warm @ warm
    with open(arguments.out, "w", encoding="utf-8", newline="", buffering=1) as file:
        table = csv.writer(file)
        for kind in arguments.kinds:
            for shape in shapes(kind):
                for name, m, n, k, call in products(*shape):
                    for share in arguments.between:
                        us = measured_us(call, share, buffers)
                        row = f"{us:.2f}", f"{2 * m * n * k / us / 1e6:.1f}"
                        table.writerow((share, name, m, n, k, *row))
            print(kind, torch.cuda.memory_allocated() >> 30, "GiB", flush=True)


if __name__ == "__main__":
    main()
