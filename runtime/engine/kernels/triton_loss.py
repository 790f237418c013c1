"""The passes of a cross-entropy over logits as two Triton kernels: statistics, and gradient.

Logits are read once for the log-sum-exp of a row and the logit of its label, and read and written
once for their gradient. Compiled text takes two to four times as long for the same: its sums read
logits twice, and rows of odd length one element at a time.

Shapes: logits [T, V] in half precision or float32, rows `stride(0)` apart; labels [T] int64; the
others [T] float32. `start` is the id that column 0 stands for; a label that lies in no column picks
nothing. A soft-cap above 0 bounds the logits first.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_attention import _LOG2E, _capped

# Of the statistics: a program reads its row in blocks of _LINES x _LANES columns. A thread holds
# all lines of its lanes, so that no block waits for a maximum over threads.
_LINES, _LANES, _WARPS = 4, 1024, 4
_ALIGNED = 8  # elements that a thread reads at once
_TILE = 2048  # columns of the gradient that a program writes
_NOTHING: tl.constexpr = tl.constexpr(-1e38)  # below every logit, and its difference is finite


def statistics(logits: Tensor, labels: Tensor, softcap: float, start: int) -> tuple[Tensor, Tensor]:
    """Return (log-sum-exp of each row, logit of its label or 0)."""
    rows, columns = logits.shape
    lse, picked = (torch.empty(rows, device=logits.device) for _ in range(2))
    _statistics_kernel[(rows,)](
        *(logits, labels.contiguous(), lse, picked, logits.stride(0), columns, start, softcap),
        CAPPED=softcap != 0.0,
        LINES=_LINES,
        LANES=_LANES,
        ALIGNED=_ALIGNED,
        num_warps=_WARPS,
    )
    return lse, picked


def gradient(
    logits: Tensor,
    dlse: Tensor,
    dpicked: Tensor,
    labels: Tensor,
    lse: Tensor,
    softcap: float,
    start: int,
    width: int,
) -> Tensor:
    """Return the gradient of logits, [T, width] in their dtype: zeros behind the last column."""
    rows, columns = logits.shape
    made = torch.empty(rows, width, dtype=logits.dtype, device=logits.device)
    of_rows = (x.contiguous() for x in (dlse, dpicked, labels, lse))
    _gradient_kernel[(rows, triton.cdiv(width, _TILE))](
        *(logits, *of_rows, made, logits.stride(0), columns, width, start, softcap),
        CAPPED=softcap != 0.0,
        BLOCK=_TILE,
    )
    return made


@triton.jit
def _statistics_kernel(  # type: ignore[no-untyped-def]
    logits, labels, lse, picked, step, columns, start, softcap,
    CAPPED: tl.constexpr, LINES: tl.constexpr, LANES: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Blocks begin at an aligned address at or before the row, which may lie at any."""
    row = tl.program_id(0)
    begin = row.to(tl.int64) * step
    low = (begin % ALIGNED).to(tl.int32)
    line = logits + tl.multiple_of(begin - low, ALIGNED)
    high = low + columns
    block = LINES * LANES
    most = tl.full([LANES], _NOTHING, tl.float32)
    sums = tl.zeros([LANES], tl.float32)
    most, sums = _add_block(
        most, sums, line, 0, low, high, softcap, CAPPED, LINES, LANES, MASKED=True
    )
    whole = tl.maximum(high // block * block, block)
    for first in range(block, whole, block):
        most, sums = _add_block(
            most, sums, line, first, low, high, softcap, CAPPED, LINES, LANES, MASKED=False
        )
    if whole < high:
        most, sums = _add_block(
            most, sums, line, whole, low, high, softcap, CAPPED, LINES, LANES, MASKED=True
        )
    top = tl.max(most, 0)
    total = tl.sum(sums * tl.exp2(most - top), 0)
    tl.store(lse + row, (top + tl.log2(total)) / _LOG2E)
    at = tl.load(labels + row) - start
    here = (at >= 0) & (at < columns)
    chosen = tl.load(line + low + tl.where(here, at, 0)).to(tl.float32)
    if CAPPED:
        chosen = _capped(chosen, softcap) * softcap
    tl.store(picked + row, tl.where(here, chosen, 0.0))


@triton.jit
def _add_block(  # type: ignore[no-untyped-def]
    most, sums, line, first, low, high, softcap,
    CAPPED: tl.constexpr, LINES: tl.constexpr, LANES: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Return the largest logits of base 2 of each lane, and the sums of powers below them, with
    those of a block."""
    at = first + tl.arange(0, LINES)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    inside = (at >= low) & (at < high)
    if MASKED:
        x = tl.load(line + at, mask=inside, other=0.0).to(tl.float32)
    else:
        x = tl.load(line + at).to(tl.float32)
    if CAPPED:
        x = _capped(x, softcap) * softcap
    x = x * _LOG2E
    if MASKED:
        x = tl.where(inside, x, float("-inf"))
    higher = tl.maximum(most, tl.max(x, 0))
    added = tl.sum(tl.exp2(x - higher[None, :]), 0)
    return higher, sums * tl.exp2(most - higher) + added


@triton.jit
def _gradient_kernel(  # type: ignore[no-untyped-def]
    logits, dlse, dpicked, labels, lse, made, step, columns, width, start, softcap,
    CAPPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row.to(tl.int64) * step + at, mask=at < columns, other=0.0)
    x = x.to(tl.float32)
    bounded = x
    if CAPPED:
        bounded = _capped(x, softcap)
        x = bounded * softcap
    dx = tl.exp2((x - tl.load(lse + row)) * _LOG2E) * tl.load(dlse + row)
    dx += tl.where(at == tl.load(labels + row) - start, tl.load(dpicked + row), 0.0)
    if CAPPED:
        dx *= 1.0 - bounded * bounded
    dx = tl.where(at < columns, dx, 0.0)
    tl.store(made + row.to(tl.int64) * width + at, dx, mask=at < width)
