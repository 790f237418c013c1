"""Readings of attention as programs run it, by head size, length and window."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.multiprocessing import get_context

from ..engine.kernels import attention, attention_backward
from ..engine.kernels.attention import backend_of
from .compute import Extent
from .timing import Reading, seconds_of

HEADS, KEY_HEADS = 32, 8
# (forward, backward) of a reading between matmuls that a model's step reaches (H200, 2026-11-23).
STEP_SHARE = 0.93, 0.91


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


def attentions(extent: Extent) -> list[tuple[int, int, int]]:
    """Return what is read of attention: (head size, length, window or 0)."""
    whole = [(*sizes, 0) for sizes in product(extent.head_dims, extent.lengths)]
    return [*whole, *extent.windowed]


def dtype_on(device: torch.device) -> torch.dtype:
    """Return the type in which attention is read on a device."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def compile_ahead(device: torch.device, extent: Extent) -> Callable[[], None]:
    """Compile the kernels of attention that are ours in processes beside this one.

    Return what waits for them. Each runs attention once, some ms of the card; what one fails to
    compile is compiled when it is read.
    """
    if device.type != "cuda" or not extent.windowed:
        return lambda: None
    count = max(1, min(len(extent.windowed), (os.cpu_count() or 1) // 2))
    context = get_context("spawn")
    begun = [
        context.Process(target=_compile, args=(extent, index, count), daemon=True)
        for index in range(count)
    ]
    for process in begun:
        process.start()

    def wait() -> None:
        for process in begun:
            process.join()

    return wait


def _compile(extent: Extent, first: int, step: int) -> None:
    for sizes in extent.windowed[first::step]:
        _, forward, backward = _both(torch.device("cuda"), extent, sizes)
        forward()
        backward()
        torch.cuda.synchronize()


def attention_read(
    device: torch.device, extent: Extent, sizes: tuple[int, int, int]
) -> AttentionRead:
    """Read the attention that programs run at one of `attentions`, between matmuls as in a step."""
    head_dim, length, window = sizes
    q, forward, backward = _both(device, extent, sizes)
    each_s = extent.each_s / 2 if window or head_dim not in extent.head_dims else extent.each_s
    sides, dtype = (extent.rows, extent.width), dtype_on(device)
    x, w = (torch.randn(n, extent.width, device=device).to(dtype) for n in sides)
    before = partial(torch.mm, x, w)
    seen = window or length
    pairs = len(q) * HEADS * (length * seen - seen * seen / 2)
    return AttentionRead(
        head_dim,
        length,
        window,
        backend_of(q, True, window, 0.0),
        seconds_of(forward, device, each_s, before).per(4 * pairs * head_dim),
        seconds_of(backward, device, each_s, before).per(10 * pairs * head_dim),
    )


def _both(
    device: torch.device, extent: Extent, sizes: tuple[int, int, int]
) -> tuple[Tensor, partial, partial]:
    """Return queries, and attention and its backward of them with keys and values."""
    head_dim, length, window = sizes
    rows = max(1, extent.tokens // length)

    def heads(count: int) -> Tensor:
        sizes = (rows, length, count, head_dim)
        return torch.randn(sizes, device=device, dtype=dtype_on(device))

    q, do, k, v = (heads(n).transpose(1, 2) for n in (HEADS, HEADS, KEY_HEADS, KEY_HEADS))
    kind = {"scale": head_dim**-0.5, "causal": True, "window": window, "softcap": 0.0}
    forward = partial(attention, q, k, v, **kind)
    o, lse = forward()
    return q, forward, partial(attention_backward, do, q, k, v, o, lse, **kind)
