"""Readings of one device: matmuls, copies, the shortest kernel, the host link."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from .timing import Reading, reading_of, seconds_of, unseen_bytes

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64}
FP8 = torch.float8_e4m3fn
HALVES = (torch.bfloat16, torch.float16, FP8)
HEAT_S = 10.0  # after which the rate of matmuls falls no more (H200, 2026-11-29)
_DEPTHS = 512, 8192  # contracted dimensions of the products that tile_depth times
_SMALL = 200  # kernels of a reading of the shortest one
# What kernels of a layer take beside their bytes, over the shortest one (H200, 2026-11-29).
LAYER_SHARE = 1.7


@dataclass(frozen=True)
class Extent:
    """Sizes to read at, and the seconds for each reading.

    rows: of the matmuls, whose weights are those of a Llama of `width`. lengths: of attention, over
    `tokens` in all, for each of head_dims. windowed: (head size, length, window or 0) of attentions
    that a kernel of ours computes. copied_bytes: of a copy.
    """

    rows: int
    width: int
    head_dims: tuple[int, ...]
    lengths: tuple[int, ...]
    tokens: int
    copied_bytes: int
    each_s: float
    windowed: tuple[tuple[int, int, int], ...] = ()


def extent_of(device: torch.device, full: bool) -> Extent:
    """Return what a probe of a device reads. full: more lengths and heads, and longer."""
    if device.type != "cuda":
        return Extent(64, 512, (64,), (256, 512), 512, 2**26, 1.0 if full else 0.05)
    windowed = (
        (64, 4096, 1024),
        *((128, 4096, window) for window in (128, 1024)),
        (128, 16384, 4096),
        (256, 4096, 1024),
        *((256, length, 0) for length in (1024, 4096, 16384)),
    )
    if full:
        lengths = (1024, 2048, 4096, 8192, 16384, 65536)
        windowed += ((64, 4096, 128), (256, 4096, 128), (256, 65536, 16384))
        return Extent(16384, 4096, (64, 128), lengths, 16384, 2**32, 5.0, windowed)
    short = (1024, 2048, 4096, 16384)
    return Extent(16384, 4096, (64, 128), short, 16384, 2**31, 1.0, windowed)


@contextmanager
def threads_of_a_rank(device: torch.device) -> Iterator[None]:
    """Compute on one thread of a CPU, as a rank does."""
    before = torch.get_num_threads()
    if device.type != "cuda":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def heat(device: torch.device, extent: Extent) -> None:
    """Bring a card to the temperature and the clock that it has in training."""
    if device.type == "cuda":
        _, _, work = next(_matmuls(torch.bfloat16, device, extent))
        seconds_of(work, device, HEAT_S)


def matmul_rate(dtype: torch.dtype, device: torch.device, extent: Extent) -> Reading:
    """Return flops per second: the median of a Llama's weight shapes, and the slowest and fastest.

    The device is kept busy between readings, as a step keeps it.
    """
    each_s = extent.each_s if dtype in HALVES else extent.each_s / 2
    found = [
        2.0 * extent.rows * k * n / seconds_of(work, device, each_s).median
        for k, n, work in _matmuls(dtype, device, extent)
    ]
    middle = reading_of(found)
    return Reading(middle.median, min(found), max(found), len(found))


def tile_depth(device: torch.device, extent: Extent) -> Reading:
    """Return the fixed cost of a tile of a bfloat16 matmul, in elements that it contracts.

    A product with the contracted dimension k takes the time of k + d. From the rates r and s of
    products with k and l, d = (s - r) / (r / k - s / l), at least 0.
    """
    few, many = _DEPTHS
    found = []
    for columns in (extent.width, 2 * extent.width, 4 * extent.width):
        products = (_product(extent.rows, k, columns, device) for k in _DEPTHS)
        times = [seconds_of(work, device, extent.each_s / 3).median for work in products]
        low, high = (k / time for k, time in zip(_DEPTHS, times, strict=True))
        found.append(max(0.0, (high - low) / (low / few - high / many)))
    return reading_of(found)


def _product(rows: int, contracted: int, columns: int, device: torch.device) -> partial[Tensor]:
    x = torch.randn(rows, contracted, device=device).to(torch.bfloat16)
    return partial(torch.mm, x, torch.randn(contracted, columns, device=device).to(torch.bfloat16))


def has_fp8(device: torch.device) -> bool:
    """Return whether this is a card that multiplies eight-bit floats: of Ada, Hopper or later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def _matmuls(
    dtype: torch.dtype, device: torch.device, extent: Extent
) -> Iterator[tuple[int, int, partial[Tensor]]]:
    wide = extent.width * 7 // 2
    for k, n in ((extent.width, extent.width), (extent.width, wide), (wide, extent.width)):
        x = torch.randn(extent.rows, k, device=device).to(dtype)
        w = torch.randn(k, n, device=device).to(dtype)
        yield k, n, _scaled(x, w) if dtype == FP8 else partial(torch.mm, x, w)


def _scaled(x: Tensor, w: Tensor) -> partial[Tensor]:
    """Return a product of eight-bit floats with a scale for each whole operand."""
    one = torch.ones((), device=x.device)
    whole = functional.ScalingType.TensorWise
    columns = w.t().contiguous().t()
    return partial(
        functional.scaled_mm, x, columns, one, whole, one, whole, output_dtype=torch.bfloat16
    )


def copy_rate(device: torch.device, extent: Extent) -> Reading:
    """Return bytes per second of a copy on the device, reads and writes together."""
    x = torch.ones(extent.copied_bytes // 4, device=device)
    work = partial(torch.empty_like(x).copy_, x)
    return seconds_of(work, device, extent.each_s).per(2.0 * extent.copied_bytes)


def shortest_kernel(device: torch.device, extent: Extent) -> Reading:
    """Return the seconds of the shortest kernel, launched ahead while the device is busy."""
    x = torch.zeros(1, device=device)

    def work() -> None:
        for _ in range(_SMALL):
            x.add_(1.0)

    def busy() -> None:
        if device.type == "cuda":
            torch.mm(wide, wide)
            torch.mm(wide, wide)

    wide = torch.zeros((8192, 8192) if device.type == "cuda" else (1, 1), device=device)
    found = seconds_of(work, device, extent.each_s, busy)
    return Reading(found.median / _SMALL, found.low / _SMALL, found.high / _SMALL, found.count)


def host_rates(device: torch.device, extent: Extent) -> dict[str, Reading]:
    """Return bytes per second of the link to the host: `both` at once, each; `out` and `back`.

    Of a rank on a CPU, where nothing is moved: those of a copy, one direction counted.
    """
    if device.type != "cuda":
        found = copy_rate(device, extent)
        return {"both": Reading(found.median / 2, found.low / 2, found.high / 2, found.count)}
    size = min(extent.copied_bytes, 2**28)
    away, from_host = (torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2))
    leaves, comes = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    other = torch.cuda.Stream(device)
    out = partial(away.copy_, leaves, non_blocking=True)
    back = partial(comes.copy_, from_host, non_blocking=True)

    def both() -> None:
        other.wait_stream(torch.cuda.current_stream(device))
        out()
        with torch.cuda.stream(other):
            back()
        torch.cuda.current_stream(device).wait_stream(other)

    each_s = extent.each_s / 2
    works: dict[str, Callable[[], object]] = {"both": both, "out": out, "back": back}
    return {name: seconds_of(work, device, each_s).per(size) for name, work in works.items()}


def context_bytes(device: torch.device) -> int:
    """Return bytes of a card that the CUDA context holds, which no allocator sees; 0 on a CPU."""
    if device.type == "cuda":
        torch.zeros(1, device=device)
        torch.cuda.synchronize(device)
    return unseen_bytes(device)
