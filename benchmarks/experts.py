"""Rates of the products of experts on one GPU, and the blocks that suit them.

    python benchmarks/experts.py [--tune] [--tokens 32768]

Each row: one product as programs call it, with the sort of its rows, by the kernels of ours and by
torch's grouped matmul over rows put in order and back; medians of 10, bf16, random rows sent to
random experts. The error is the relative norm against float32. --tune tries blocks for each kernel,
after compiling them in several processes, and prints the fastest first. Gradients of matrices are
left to torch: 1.0 and 1.6 times as fast there as a kernel that gathers.
"""

import argparse
import itertools
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from meshwright.runtime.engine.kernels import experts
from meshwright.runtime.engine.kernels import triton_experts as ours


class Shape(NamedTuple):
    name: str
    choices: int
    experts: int
    width: int
    inner: int


SHAPES = (
    Shape("Qwen3 30B-A3B", 8, 128, 2048, 768),
    Shape("Mixtral 8x7B", 2, 8, 4096, 14336),
)
TILES = [
    ours.Tile(rows, columns, depth, warps, stages)
    for rows, columns, depth, warps, stages in (
        (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (128, 128, 64, 4, 4), (128, 128, 64, 8, 3),
        (256, 128, 64, 8, 3), (64, 256, 64, 4, 4), (128, 128, 128, 8, 2), (128, 256, 32, 8, 4),
    )
]  # fmt: skip

Product = Callable[[], Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--compile", type=int, help="compile for the block of this number alone")
    given = parser.parse_args()
    if given.compile is not None:
        ours.TUNED = TILES[given.compile]
        for _, call, _ in products(SHAPES[0], 1024).values():
            call()
        return
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    if given.tune:
        words = [sys.executable, __file__, "--compile"]
        started = [subprocess.Popen([*words, str(k)]) for k in range(len(TILES))]
        print("compiled", [process.wait() for process in started], flush=True)
    for shape in SHAPES:
        rows = products(shape, given.tokens)
        if given.tune:
            tune(shape, rows)
        for name, (flops, call, exact) in rows.items():
            print(row(f"{shape.name}, {name}", flops, call, exact), flush=True)


def products(shape: Shape, tokens: int) -> dict[str, tuple[float, Product, Product]]:
    """By name: flops, the product in bf16, and the first rows of it in float32."""
    torch.manual_seed(0)
    made = {"device": "cuda", "dtype": torch.bfloat16}
    scores = torch.rand(tokens, shape.experts, device="cuda")
    ids = scores.topk(shape.choices, dim=-1).indices
    x = torch.randn(tokens, shape.width, **made)
    up = torch.randn(shape.experts, 2 * shape.inner, shape.width, **made) * shape.width**-0.5
    down = torch.randn(shape.experts, shape.width, shape.inner, **made) * shape.inner**-0.5
    h = torch.randn(tokens, shape.choices, shape.inner, **made)
    d_up = torch.randn(tokens, shape.choices, 2 * shape.inner, **made)
    d_down = torch.randn(tokens, shape.choices, shape.width, **made)
    some = slice(0, 512)
    flops = 2.0 * tokens * shape.choices * shape.width * shape.inner

    def wide(*given: Tensor) -> list[Tensor]:
        return [t.float() if t.is_floating_point() else t for t in given]

    def few(function: Callable[..., Tensor], *given: Tensor, **more: bool) -> Product:
        return lambda: function(*wide(*given), **more)

    forward, back = experts._expert_linear, experts._expert_linear_input_grad
    return {
        "up": (2 * flops, lambda: forward(x, up, ids, False),
               few(forward, x[some], up, ids[some], transposed=False)),
        "down": (flops, lambda: forward(h, down, ids, False),
                 few(forward, h[some], down, ids[some], transposed=False)),
        "down, input": (flops, lambda: back(d_down, down, ids, False, False),
                        few(back, d_down[some], down, ids[some], transposed=False, shared=False)),
        "up, input": (2 * flops, lambda: back(d_up, up, ids, False, True),
                      few(back, d_up[some], up, ids[some], transposed=False, shared=True)),
    }  # fmt: skip


def row(name: str, flops: float, call: Product, exact: Product) -> str:
    ms = measured(call)
    found, wanted = call()[: len(exact())].float(), exact()
    error = ((found - wanted).norm() / wanted.norm()).item()
    fused, experts._fused = experts._fused, lambda x: False  # torch's grouped matmul
    other = measured(call)
    experts._fused = fused
    return (
        f"| {name} | {ms:.2f} ms: {flops / ms / 1e9:.0f} | {other:.2f} ms: "
        f"{flops / other / 1e9:.0f} | {other / ms:.2f} | {error:.1e} |"
    )


def measured(call: Callable[[], object], times: int = 10) -> float:
    """Median milliseconds."""
    for _ in range(2):
        call()
    found = []
    for _ in range(times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end))
    return statistics.median(found)


def tune(shape: Shape, rows: dict[str, tuple[float, Product, Product]]) -> None:
    """Print the rates of each product under each block, and keep the fastest of each kernel."""
    rates: dict[str, list[tuple[float, ours.Tile]]] = {}
    for tile, (name, (flops, call, _)) in itertools.product(TILES, rows.items()):
        ours.tuned.cache_clear()
        ours.TUNED = tile
        try:
            rates.setdefault(name, []).append((flops / measured(call, 5) / 1e9, tile))
        except Exception as error:
            print(f"{name} {tile}: {type(error).__name__} {str(error)[:80]}", flush=True)
    for name, found in rates.items():
        found.sort(key=lambda r: -r[0])
        print(
            shape.name, name, *(f"{r:.0f} {list(vars(t).values())}" for r, t in found), flush=True
        )
    ours.tuned.cache_clear()
    ours.TUNED = _best(rates)


def _best(rates: dict[str, list[tuple[float, ours.Tile]]]) -> ours.Tile:
    """The block with the least time over all products."""
    times: dict[ours.Tile, float] = {}
    for name, found in rates.items():
        for rate, tile in found:
            times[tile] = times.get(tile, 0.0) + (2.0 if name.startswith("up") else 1.0) / rate
    return min(times, key=lambda tile: times[tile])


if __name__ == "__main__":
    main()
