"""Matmuls of split layers on one GPU: what share of the rate of large ones each reaches.

    python benchmarks/split_matmuls.py OUT.csv

For decoders of several sizes under tp of 1 to 8, the products of queries, keys and values, of the
output and of both of a feed-forward's, forward and both gradients, on 2,048 to 16,384 tokens in
bf16; one row each of kind, m, n, k, us and Tflop/s, the median of three times twelve calls on three
sets of operands. The card is warmed up before each size. Not a part of the package.
"""

import csv
import statistics
import sys
from collections.abc import Callable, Iterator
from itertools import product

import torch

DIMS, RANKS, TOKENS = (4096, 5120, 8192, 12288, 14336), (1, 2, 4, 8), (2048, 4096, 8192, 16384)
SETS, CALLS = 3, 12


def shapes(dim: int) -> Iterator[tuple[int, int, int]]:
    """Give tokens, features out and features in; the widest models are not left whole."""
    for ranks, tokens in product(RANKS, TOKENS):
        if ranks > 1 or dim <= 8192:
            local = dim // ranks
            for out, into in ((3 * local, dim), (dim, local), (4 * local, dim), (dim, 4 * local)):
                yield tokens, out, into


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def median_us(call: Callable[[int], object]) -> float:
    """Return the time of a call, given the number of its operands."""
    for k in range(SETS):
        call(k)
    found = []
    for _ in range(3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for k in range(CALLS):
            call(k % SETS)
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / CALLS * 1e3)
    return statistics.median(found)


def measured(tokens: int, out: int, into: int) -> Iterator[tuple[str, int, int, int, float]]:
    """Give the three products of a linear."""
    x, w, dy = (
        [random(*shape) for _ in range(SETS)]
        for shape in ((tokens, into), (out, into), (tokens, out))
    )
    yield "forward", tokens, out, into, median_us(lambda k: x[k] @ w[k].T)
    yield "input gradient", tokens, into, out, median_us(lambda k: dy[k] @ w[k])
    yield "weight gradient", out, into, tokens, median_us(lambda k: dy[k].T @ x[k])


def main() -> None:
    a, b = random(8192, 8192), random(8192, 8192)
    with open(sys.argv[1], "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        for dim in DIMS:
            median_us(lambda _: [a @ b for _ in range(20)])
            for shape in dict.fromkeys(shapes(dim)):
                for kind, m, n, k, us in measured(*shape):
                    table.writerow((kind, m, n, k, f"{us:.2f}", f"{2 * m * n * k / us / 1e6:.1f}"))


if __name__ == "__main__":
    main()
