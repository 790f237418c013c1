"""Readings of one device: matmuls, copies, attention, the shortest kernel, the host link."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor

from ..engine.kernels import attention, attention_backward
from ..engine.kernels.attention import backend_of
from .timing import Reading, reading_of, seconds_of

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64}
HEADS, KEY_HEADS = 32, 8
HEAT_S = 5.0
_SMALL = 200  # kernels of a reading of the shortest one


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
    return Extent(16384, 4096, (64, 128), (1024, 4096, 16384), 16384, 2**31, 1.0, windowed)


@dataclass(frozen=True)
class AttentionRead:
    """Flops a second of causal attention, for heads of one size at one length.

    window: 0 for none. backend: as `backend_of` names it.
    """

    head_dim: int
    length: int
    window: int
    backend: str
    forward: Reading
    backward: Reading

    @property
    def positions(self) -> int:
        """Return the length of the row without a window whose queries see as many keys."""
        seen = self.window or self.length
        return round(seen * (2 - seen / self.length))


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
    found = [
        2.0 * extent.rows * k * n / seconds_of(work, device, extent.each_s).median
        for k, n, work in _matmuls(dtype, device, extent)
    ]
    middle = reading_of(found)
    return Reading(middle.median, min(found), max(found), len(found))


def _matmuls(
    dtype: torch.dtype, device: torch.device, extent: Extent
) -> Iterator[tuple[int, int, partial[Tensor]]]:
    wide = extent.width * 7 // 2
    for k, n in ((extent.width, extent.width), (extent.width, wide), (wide, extent.width)):
        x = torch.randn(extent.rows, k, device=device).to(dtype)
        w = torch.randn(k, n, device=device).to(dtype)
        yield k, n, partial(torch.mm, x, w)


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


def attention_reads(
    dtype: torch.dtype, device: torch.device, extent: Extent
) -> Iterator[AttentionRead]:
    """Yield readings of the attention that programs run, each between matmuls as in a step."""
    whole = ((*sizes, 0) for sizes in product(extent.head_dims, extent.lengths))
    for head_dim, length, window in (*whole, *extent.windowed):
        yield _attention(dtype, device, extent, head_dim, length, window)


def _attention(
    dtype: torch.dtype,
    device: torch.device,
    extent: Extent,
    head_dim: int,
    length: int,
    window: int,
) -> AttentionRead:
    rows = max(1, extent.tokens // length)

    def heads(count: int) -> Tensor:
        return torch.randn(rows, length, count, head_dim, device=device, dtype=dtype)

    q, do, k, v = (heads(n).transpose(1, 2) for n in (HEADS, HEADS, KEY_HEADS, KEY_HEADS))
    kind = {"scale": head_dim**-0.5, "causal": True, "window": window, "softcap": 0.0}
    forward = partial(attention, q, k, v, **kind)
    o, lse = forward()
    each_s = extent.each_s / 2 if window or head_dim not in extent.head_dims else extent.each_s
    backward = partial(attention_backward, do, q, k, v, o, lse, **kind)
    x, w = (torch.randn(n, extent.width, device=device).to(dtype) for n in _sides(extent))
    before = partial(torch.mm, x, w)
    seen = window or length
    pairs = rows * HEADS * (length * seen - seen * seen / 2)
    return AttentionRead(
        head_dim,
        length,
        window,
        backend_of(q, True, window, 0.0),
        seconds_of(forward, device, each_s, before).per(4 * pairs * head_dim),
        seconds_of(backward, device, each_s, before).per(10 * pairs * head_dim),
    )


def _sides(extent: Extent) -> tuple[int, int]:
    return extent.rows, extent.width


def host_rate(device: torch.device, extent: Extent) -> Reading:
    """Return bytes per second of one direction of the link to the host, both in use at once.

    Of a rank on a CPU, where nothing is moved: those of a copy, one direction counted.
    """
    if device.type != "cuda":
        found = copy_rate(device, extent)
        return Reading(found.median / 2, found.low / 2, found.high / 2, found.count)
    size = min(extent.copied_bytes, 2**28)
    away, back = (torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2))
    leaves, comes = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    other = torch.cuda.Stream(device)

    def work() -> None:
        other.wait_stream(torch.cuda.current_stream(device))
        away.copy_(leaves, non_blocking=True)
        with torch.cuda.stream(other):
            comes.copy_(back, non_blocking=True)
        torch.cuda.current_stream(device).wait_stream(other)

    return seconds_of(work, device, extent.each_s).per(size)


def context_bytes(device: torch.device) -> int:
    """Return bytes of a card that the CUDA context holds, which no allocator sees; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    torch.zeros(1, device=device)
    torch.cuda.synchronize(device)
    free, whole = torch.cuda.mem_get_info(device)
    return whole - free - torch.cuda.memory_reserved(device)
