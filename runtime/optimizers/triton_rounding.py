"""The rounding of rounding.py as one Triton kernel: reads 4 bytes and writes 2 an element.

Correct for the same reason: `_mix` is the same arithmetic in unsigned 32 bits, where a product
wraps as the mask does in torch, and an element's bits depend on its logical index alone, so the
grid and the block size change nothing.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _mix(x):  # type: ignore[no-untyped-def]
    x = (x ^ (x >> 16)) * tl.full((), 0x21F0AAAD, tl.uint32)
    x = (x ^ (x >> 15)) * tl.full((), 0x735A2D97, tl.uint32)
    return x ^ (x >> 15)


@triton.jit
def rounded_bits(bits, index, key):  # type: ignore[no-untyped-def]
    """Return the 16 bits of bfloat16, as uint16, that float32's `bits` round to. index: int64."""
    secret = key.to(tl.uint32)
    low, high = index.to(tl.uint32), (index >> 32).to(tl.uint32)
    random = _mix(_mix(low ^ secret) ^ (high + (secret >> 7))) >> 16
    finite = (bits & 0x7F800000) != 0x7F800000
    # What is not finite keeps its bits; a NaN whose upper mantissa is 0 would read as infinite.
    whole = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, bits | 0x00400000, bits)
    return (tl.where(finite, bits + random, whole) >> 16).to(tl.uint16)


@triton.jit(do_not_specialize=["key", "first", "columns"])
def _round_kernel(  # type: ignore[no-untyped-def]
    target, values, columns, target_stride, values_stride, first, stride, key, BLOCK: tl.constexpr
):
    """Program (r, b) rounds block b of row r. target: bfloat16's bits as int16."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    bits = tl.load(values + row * values_stride + column, mask=inside, other=0).to(
        tl.uint32, bitcast=True
    )
    upper = rounded_bits(bits, first + row * stride + column, key)
    where = target + row * target_stride + column
    tl.store(where, upper.to(tl.int16, bitcast=True), mask=inside)


def round_rows(target: Tensor, x: Tensor, first: int, stride: int, key: int) -> None:
    """target [rows, columns] bfloat16 from x float32; element (r, c) has index
    first + r * stride + c. Columns of both must be contiguous."""
    rows, columns = x.shape
    assert target.stride(1) == 1 and x.stride(1) == 1, "columns must be contiguous"
    if x.numel() == 0:
        return
    _round_kernel[(rows, triton.cdiv(columns, _BLOCK))](
        target.view(torch.int16),
        x.view(torch.int32),
        columns,
        target.stride(0),
        x.stride(0),
        first,
        stride,
        key,
        BLOCK=_BLOCK,
    )
