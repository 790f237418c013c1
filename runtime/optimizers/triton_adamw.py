"""AdamW as Triton kernels over flat tensors: reads each element of weights, gradient and moments
once, scales the gradient on the way, and writes weights and moments.

`adamw_` updates one run. `fused_adamw_` updates many by one launch, which also rounds weights
stochastically, writes the copy that forward reads and clears gradients. Arithmetic is in
float32 whatever is stored, in the order of torch's fused step.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_rounding import rounded_bits

_BLOCK, _WARPS = 1024, 4
# Elements of a program of the fused kernel.
CHUNK = 4 * _BLOCK
# Tensors of a span, which come first in a row of `Table.spans`, and all columns of it.
TENSORS = ("weights", "grad", "exp_avg", "exp_avg_sq", "copy")
SPAN = (*TENSORS, "count", "columns", "pitch", "first", "stride", "key")


@triton.jit
def _updated(  # type: ignore[no-untyped-def]
    weights,
    grad,
    exp_avg,
    exp_avg_sq,
    at,
    inside,
    scale,
    beta1,
    beta2,
    rest1,
    rest2,
    kept,
    step_size,
    root,
    eps,
):
    """Return weights and moments of the elements `at` after an update, in float32."""
    w = tl.load(weights + at, mask=inside).to(tl.float32)
    g = tl.load(grad + at, mask=inside).to(tl.float32) * scale
    m = beta1 * tl.load(exp_avg + at, mask=inside).to(tl.float32) + rest1 * g
    v = beta2 * tl.load(exp_avg_sq + at, mask=inside).to(tl.float32) + rest2 * g * g
    w = w * kept - step_size * m / (tl.sqrt(v) / root + eps)
    return w, m, v


@triton.jit
def _store(to, at, x, inside):  # type: ignore[no-untyped-def]
    tl.store(to + at, x.to(to.dtype.element_ty), mask=inside)


@triton.jit
def _adamw_kernel(  # type: ignore[no-untyped-def]
    weights,
    grad,
    exp_avg,
    exp_avg_sq,
    count,
    scale,
    kept,
    beta1,
    beta2,
    rest1,
    rest2,
    step_size,
    root,
    eps,
    BLOCK: tl.constexpr,
):
    """Program b updates block b."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    numbers = beta1, beta2, rest1, rest2, kept, step_size, root, eps
    w, m, v = _updated(weights, grad, exp_avg, exp_avg_sq, at, inside, scale, *numbers)
    _store(weights, at, w, inside)
    _store(exp_avg, at, m, inside)
    _store(exp_avg_sq, at, v, inside)


def adamw_(
    weights: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    scale: float,
    lr: float,
    decay: float,
    betas: tuple[float, float],
    eps: float,
    count: int,
) -> None:
    """Update weights and moments in place by scale * grad; all flat [n], contiguous, bfloat16 or
    float32. count: updates up to and with this one."""
    numel, (beta1, beta2) = weights.numel(), betas
    if numel == 0:
        return
    _adamw_kernel[(triton.cdiv(numel, _BLOCK),)](
        weights,
        grad,
        exp_avg,
        exp_avg_sq,
        numel,
        scale,
        1.0 - lr * decay,
        beta1,
        beta2,
        1.0 - beta1,
        1.0 - beta2,
        lr / (1.0 - beta1**count),
        (1.0 - beta2**count) ** 0.5,
        eps,
        BLOCK=_BLOCK,
    )


@triton.jit
def _rows(base, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the row that each of BLOCK elements from `base` on lies in, by 32-bit divisions."""
    top = base // columns
    beside = (base - top * columns + tl.arange(0, BLOCK)).to(tl.int32)
    return top + beside // columns.to(tl.int32)


@triton.jit
def _fused_kernel(  # type: ignore[no-untyped-def]
    weights,
    grad,
    exp_avg,
    exp_avg_sq,
    copy,
    chunks,
    spans,
    rates,
    keys,
    scale,
    lr,
    beta1,
    beta2,
    rest1,
    rest2,
    bias,
    root,
    eps,
    COPIES: tl.constexpr,
    ROUNDS: tl.constexpr,
    CLEARS: tl.constexpr,
    STRIDED: tl.constexpr,
    UNIT: tl.constexpr,
    COLUMNS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program p updates the chunk that row p of `chunks` names: a span, and a part of it."""
    span = tl.load(chunks + 2 * tl.program_id(0)).to(tl.int64)
    part = tl.load(chunks + 2 * tl.program_id(0) + 1).to(tl.int64)
    row = spans + span * COLUMNS
    # The compiler cannot tell that a loaded number is a multiple of 16, but that a product with 16
    # is one. Only then does it move 16 bytes at a time.
    weights += tl.load(row) * UNIT
    grad += tl.load(row + 1) * UNIT
    exp_avg += tl.load(row + 2) * UNIT
    exp_avg_sq += tl.load(row + 3) * UNIT
    copy += tl.load(row + 4) * UNIT
    count = tl.load(row + 5) * UNIT
    columns, pitch = tl.load(row + 6), tl.load(row + 7)
    first, stride = tl.load(row + 8), tl.load(row + 9)
    key = tl.load(keys + tl.load(row + 10))
    rate = lr * tl.load(rates + 2 * span)
    kept = 1.0 - rate * tl.load(rates + 2 * span + 1)
    step_size = rate / bias
    numbers = beta1, beta2, rest1, rest2, kept, step_size, root, eps
    left = tl.minimum(count - part * SIZE, SIZE).to(tl.int32)
    for begin in range(0, left, BLOCK):
        base = part * SIZE + begin
        at = base + tl.arange(0, BLOCK)
        inside = at < count
        index = first + at
        if ROUNDS:
            if stride != columns:
                index += _rows(base, columns, BLOCK) * (stride - columns)
        if STRIDED:
            at += _rows(base, columns, BLOCK) * (pitch - columns)
        w, m, v = _updated(weights, grad, exp_avg, exp_avg_sq, at, inside, scale, *numbers)
        if ROUNDS:
            upper = rounded_bits(w.to(tl.uint32, bitcast=True), index, key)
            w = upper.to(tl.bfloat16, bitcast=True)
        _store(weights, at, w, inside)
        _store(exp_avg, at, m, inside)
        _store(exp_avg_sq, at, v, inside)
        if COPIES:
            _store(copy, at, w, inside)
        if CLEARS:
            _store(grad, at, tl.zeros((BLOCK,), tl.float32), inside)


class Kinds(NamedTuple):
    """What spans of one launch share: dtypes, whether weights round, gradients are cleared, and
    rows lie apart in memory. copy: dtype of the copy, None without one. unit: elements that offsets
    and counts are given in."""

    weight: torch.dtype
    grad: torch.dtype
    copy: torch.dtype | None
    rounds: bool
    clears: bool
    strided: bool
    unit: int


class Table(NamedTuple):
    """What a launch updates.

    bases: a tensor for each of TENSORS, of any span. spans: int64 [spans, len(SPAN)]; of a span the
    offsets of its tensors from the bases and its count of elements, in units; elements are rows of
    `columns`, `pitch` apart in memory; in the whole parameter the first has the flat index `first`,
    and rows are `stride` apart; `key` is a row of keys. rates: float32 [spans, 2], the factor of
    the step's learning rate and the weight decay. keys: int64 [parameters], of rounding. chunks:
    int32 [programs, 2], a span and which of its chunks.
    """

    bases: tuple[Tensor, ...]
    spans: Tensor
    rates: Tensor
    keys: Tensor
    chunks: Tensor


def fused_adamw_(
    table: Table,
    kinds: Kinds,
    *,
    scale: float,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    count: int,
) -> None:
    """Update all spans of a table in place, as `adamw_` does one."""
    beta1, beta2 = betas
    _fused_kernel[(len(table.chunks),)](
        *table.bases,
        table.chunks,
        table.spans,
        table.rates,
        table.keys,
        scale,
        lr,
        beta1,
        beta2,
        1.0 - beta1,
        1.0 - beta2,
        1.0 - beta1**count,
        (1.0 - beta2**count) ** 0.5,
        eps,
        COPIES=kinds.copy is not None,
        ROUNDS=kinds.rounds,
        CLEARS=kinds.clears,
        STRIDED=kinds.strided,
        UNIT=kinds.unit,
        COLUMNS=len(SPAN),
        SIZE=CHUNK,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
    )
