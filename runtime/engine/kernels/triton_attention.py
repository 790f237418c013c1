"""Attention as three Triton kernels: forward, gradients of keys and values, gradient of queries.

FlashAttention-2 (Dao 2023, arXiv 2307.08691), algorithms 1 and 2, with windows, soft-caps, grouped
heads, head sizes up to 256, and queries that begin anywhere among the keys. Scores live in
registers, and blocks of keys that a mask hides whole are never read. Blocks that it hides in part
are masked, the others are not. Exponentials are of base 2, log-sum-exps that go in and out natural.

`benchmarks/attention.py` reads its rates on a card, and finds the blocks that suit one.

Shapes: q o do [B, H, S, D], k v [B, K, T, D] with H a multiple of K, log-sum-exp [B, H, S] float32.
Query i has the place `start + i` among the keys; it sees those up to its own place where `causal`,
and of them the last `window` where that is above 0. Each query must see a key.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .attention_buffers import empty_rows, outputs
from .attention_tuning import Blocks, blocks_at_once, key_parts, keys_blocks, padded, tuned

LARGEST_HEAD = 256
_LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


class Rule(NamedTuple):
    """Rule of which keys a query sees, and of how scores are made."""

    scale: float
    causal: bool
    window: int
    softcap: float
    start: int = 0


def forward(q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """Return (o in the dtype of q, log-sum-exp)."""
    o, lse = outputs(q)
    q, k, v = _whole_rows(q, k, v)
    batch, heads, length, size = q.shape
    blocks = tuned(size, q.device).forward
    _forward[(triton.cdiv(length, blocks.queries), batch * heads)](
        *(q, k, v, o, lse),
        *(step for x in (q, k, v, o) for step in x.stride()[:3]),
        *(heads, length, k.shape[2], rule.start, rule.scale, rule.softcap),
        **_constants(q, k, rule, blocks),
    )
    return o, lse


def backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, along: Tensor, rule: Rule
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (dq, dk, dv) in the dtype of their operands.

    along: the sums of do * o over D, float32 [B, H, S] (D of algorithm 2).
    """
    do, q, k, v = _whole_rows(do, q, k, v)
    lse, along = lse.contiguous(), along.contiguous()
    dk, dv = keys_backward(do, q, k, v, lse, along, rule)
    return queries_backward(do, q, k, v, lse, along, rule), dk, dv


def keys_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, along: Tensor, rule: Rule
) -> tuple[Tensor, Tensor]:
    """Return (dk, dv)."""
    blocks = keys_blocks(q.shape[3], q.device, rule.softcap != 0.0)
    grid = (triton.cdiv(k.shape[2], blocks.keys), k.shape[0] * k.shape[1])
    group = q.shape[1] // k.shape[1]
    parts = key_parts(grid[0] * grid[1], group, blocks_at_once(q.shape[3], q.device))
    dk, dv = empty_rows(k), empty_rows(k)
    made = (dk, dv)
    if parts > 1:
        sums = k.new_empty(parts, 2, *k.shape, dtype=torch.float32)
        made = (sums[:, 0], sums[:, 1])
    _backward_keys[(*grid, parts)](
        *(do, q, k, v, *made, lse, along),
        *(step for x in (do, q, k, v) for step in x.stride()[:3]),
        *(made[0].stride()[:4] if parts > 1 else (0, *dk.stride()[:3])),
        *(q.shape[1], q.shape[2], k.shape[2], rule.start, rule.scale, rule.softcap),
        PARTS=parts,
        **_constants(q, k, rule, blocks),
    )
    if parts > 1:
        total = sums.sum(0)
        dk.copy_(total[0])
        dv.copy_(total[1])
    return dk, dv


def queries_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, along: Tensor, rule: Rule
) -> Tensor:
    """Return dq."""
    dq = empty_rows(q)
    blocks = tuned(q.shape[3], q.device).queries
    _backward_queries[(triton.cdiv(q.shape[2], blocks.queries), q.shape[0] * q.shape[1])](
        *(do, q, k, v, dq, lse, along),
        *(step for x in (do, q, k, v, dq) for step in x.stride()[:3]),
        *(q.shape[1], q.shape[2], k.shape[2], rule.start, rule.scale, rule.softcap),
        **_constants(q, k, rule, blocks),
    )
    return dq


def _constants(q: Tensor, k: Tensor, rule: Rule, blocks: Blocks) -> dict[str, int]:
    """What a kernel is compiled for."""
    return {
        "GROUP": q.shape[1] // k.shape[1],
        "SIZE": q.shape[3],
        "PADDED": padded(q.shape[3]),
        "CAUSAL": rule.causal,
        "WINDOW": rule.window,
        "CAPPED": rule.softcap != 0.0,
        "QUERIES": blocks.queries,
        "KEYS": blocks.keys,
        "EXACT": q.dtype == torch.float32,
        "num_warps": blocks.warps,
        "num_stages": blocks.stages,
    }


def _whole_rows(*tensors: Tensor) -> list[Tensor]:
    """The elements of a head beside each other, as the kernels read them."""
    return [x if x.stride(-1) == 1 else x.contiguous() for x in tensors]


@triton.jit
def _head(at, head, stride_b, stride_h, batch):  # type: ignore[no-untyped-def]
    """Address of the first row of a head of a row of the batch."""
    return at + batch.to(tl.int64) * stride_b + head.to(tl.int64) * stride_h


@triton.jit
def _block(at, rows, stride, count, SIZE: tl.constexpr, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """[rows, PADDED] of a head, zeros outside of it."""
    columns = tl.arange(0, PADDED)
    where = at + rows[:, None] * stride + columns[None, :]
    inside = rows[:, None] < count
    if SIZE != PADDED:
        inside = inside & (columns[None, :] < SIZE)
    return tl.load(where, mask=inside, other=0.0)


@triton.jit
def _put(at, values, rows, stride, count, SIZE: tl.constexpr, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    columns = tl.arange(0, PADDED)
    where = at + rows[:, None] * stride + columns[None, :]
    inside = rows[:, None] < count
    if SIZE != PADDED:
        inside = inside & (columns[None, :] < SIZE)
    tl.store(where, values.to(at.dtype.element_ty), mask=inside)


@triton.jit
def _dot(a, b, EXACT: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.dot(a, b, input_precision="ieee" if EXACT else "tf32")


@triton.jit
def _capped(scores, cap):  # type: ignore[no-untyped-def]
    """tanh(scores / cap): the capped scores over the cap."""
    return 1.0 - 2.0 / (tl.exp2(scores * (2.0 * _LOG2E / cap)) + 1.0)


@triton.jit
def _seen(places, keys, count, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which keys the queries at some places see; both broadcast against each other."""
    seen = keys < count
    if CAUSAL:
        seen = seen & (keys <= places)
    if WINDOW > 0:
        seen = seen & (keys > places - WINDOW)
    return seen


@triton.jit
def _key_range(  # type: ignore[no-untyped-def]
    first, count, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, QUERIES: tl.constexpr,
    KEYS: tl.constexpr
):  # fmt: skip
    """(first key, first of the blocks that all see, their end, end) for queries from place `first`.

    All but the last are multiples of KEYS.
    """
    last = first + QUERIES - 1
    low, whole = 0, 0
    if WINDOW > 0:
        low = tl.maximum(first - WINDOW + 1, 0) // KEYS * KEYS
        whole = tl.cdiv(tl.maximum(last - WINDOW + 1, 0), KEYS) * KEYS
    end, whole_end = count, count
    if CAUSAL:
        end = tl.minimum(count, last + 1)
        whole_end = tl.minimum(count, first + 1)
    whole = tl.minimum(whole, tl.cdiv(end, KEYS) * KEYS)
    return low, whole, tl.maximum(whole, whole_end // KEYS * KEYS), end


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    o, total, top, q, k_at, v_at, k_stride, v_stride, places, begin, end, count, scale, cap,
    SIZE: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr, EXACT: tl.constexpr
):  # fmt: skip
    """Take the keys from `begin` to `end` into the running maximum, sum and output."""
    for at in range(begin, end, KEYS):
        keys = at + tl.arange(0, KEYS)
        k = _block(k_at, keys, k_stride, count, SIZE, PADDED)
        s = _dot(q, tl.trans(k), EXACT) * scale
        if CAPPED:
            s = cap * _capped(s, cap)
        s = s * _LOG2E
        if MASKED:
            s = tl.where(_seen(places[:, None], keys[None, :], count, CAUSAL, WINDOW), s, -1e30)
        above = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - above[:, None])
        shrunk = tl.exp2(top - above)
        total = total * shrunk + tl.sum(p, 1)
        v = _block(v_at, keys, v_stride, count, SIZE, PADDED)
        o = o * shrunk[:, None] + _dot(p.to(v.dtype), v, EXACT)
        top = above
    return o, total, top


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    q, k, v, o, lse,
    q_b, q_h, q_s, k_b, k_h, k_s, v_b, v_h, v_s, o_b, o_h, o_s,
    heads, length, count, start, scale, cap,
    GROUP: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, CAPPED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    EXACT: tl.constexpr
):  # fmt: skip
    """Program (b, h): a block of queries of a head; the blocks with most keys first."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    rows = block * QUERIES + tl.arange(0, QUERIES)
    places = start + rows
    q_block = _block(_head(q, head, q_b, q_h, batch), rows, q_s, length, SIZE, PADDED)
    k_at = _head(k, head // GROUP, k_b, k_h, batch)
    v_at = _head(v, head // GROUP, v_b, v_h, batch)
    top = tl.full([QUERIES], -1e30, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    out = tl.zeros([QUERIES, PADDED], tl.float32)
    low, whole, whole_end, end = _key_range(
        start + block * QUERIES, count, CAUSAL, WINDOW, QUERIES, KEYS
    )
    if WINDOW > 0:
        out, total, top = _attend(
            out, total, top, q_block, k_at, v_at, k_s, v_s, places, low, whole, count, scale, cap,
            SIZE, PADDED, CAUSAL, WINDOW, CAPPED, KEYS, True, EXACT,
        )  # fmt: skip
    out, total, top = _attend(
        out, total, top, q_block, k_at, v_at, k_s, v_s, places, whole, whole_end, count, scale,
        cap, SIZE, PADDED, CAUSAL, WINDOW, CAPPED, KEYS, False, EXACT,
    )  # fmt: skip
    out, total, top = _attend(
        out, total, top, q_block, k_at, v_at, k_s, v_s, places, whole_end, end, count, scale, cap,
        SIZE, PADDED, CAUSAL, WINDOW, CAPPED, KEYS, True, EXACT,
    )  # fmt: skip
    _put(_head(o, head, o_b, o_h, batch), out / total[:, None], rows, o_s, length, SIZE, PADDED)
    at = lse + tl.program_id(1).to(tl.int64) * length + rows
    tl.store(at, (top + tl.log2(total)) / _LOG2E, mask=rows < length)


@triton.jit
def _weights(  # type: ignore[no-untyped-def]
    s, lse, places, keys, count, scale, cap, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """(probabilities, derivative of the capped score by the score) of products q k."""
    s = s * scale
    slope = 1.0
    if CAPPED:
        bounded = _capped(s, cap)
        s = cap * bounded
        slope = 1.0 - bounded * bounded
    p = tl.exp2((s - lse) * _LOG2E)
    if MASKED:
        p = tl.where(_seen(places, keys, count, CAUSAL, WINDOW), p, 0.0)
    return p, slope


@triton.jit
def _add_queries(  # type: ignore[no-untyped-def]
    dk, dv, k, v, q_at, do_at, lse_at, along_at, q_stride, do_stride, keys, begin, end, length,
    count, start, scale, cap,
    SIZE: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr, QUERIES: tl.constexpr, MASKED: tl.constexpr, EXACT: tl.constexpr
):  # fmt: skip
    """Add what the queries from `begin` to `end` give to keys and values; scores transposed."""
    for at in range(begin, end, QUERIES):
        rows = at + tl.arange(0, QUERIES)
        inside = rows < length
        q = _block(q_at, rows, q_stride, length, SIZE, PADDED)
        lse = tl.load(lse_at + rows, mask=inside, other=0.0)
        s = _dot(k, tl.trans(q), EXACT)
        p, slope = _weights(
            s, lse[None, :], start + rows[None, :], keys[:, None], count, scale, cap,
            CAUSAL, WINDOW, CAPPED, MASKED,
        )  # fmt: skip
        if MASKED:
            p = tl.where(inside[None, :], p, 0.0)
        do = _block(do_at, rows, do_stride, length, SIZE, PADDED)
        dv += _dot(p.to(do.dtype), do, EXACT)
        along = tl.load(along_at + rows, mask=inside, other=0.0)
        ds = p * (_dot(v, tl.trans(do), EXACT) - along[None, :]) * slope
        dk += _dot(ds.to(q.dtype), q, EXACT)
    return dk, dv


@triton.jit
def _backward_keys(  # type: ignore[no-untyped-def]
    do, q, k, v, dk, dv, lse, along,
    do_b, do_h, do_s, q_b, q_h, q_s, k_b, k_h, k_s, v_b, v_h, v_s, d_p, d_b, d_h, d_s,
    heads, length, count, start, scale, cap, PARTS: tl.constexpr,
    GROUP: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, CAPPED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    EXACT: tl.constexpr
):  # fmt: skip
    """Program (b, h, p): a block of keys of a head of keys, over one part of the heads of queries
    that read it."""
    first = tl.program_id(0) * KEYS
    key_heads = heads // GROUP
    batch, key_head = tl.program_id(1) // key_heads, tl.program_id(1) % key_heads
    keys = first + tl.arange(0, KEYS)
    k_block = _block(_head(k, key_head, k_b, k_h, batch), keys, k_s, count, SIZE, PADDED)
    v_block = _block(_head(v, key_head, v_b, v_h, batch), keys, v_s, count, SIZE, PADDED)
    dk_block = tl.zeros([KEYS, PADDED], tl.float32)
    dv_block = tl.zeros([KEYS, PADDED], tl.float32)
    low, whole = 0, 0
    if CAUSAL:
        low = tl.maximum(first - start, 0) // QUERIES * QUERIES
        whole = tl.cdiv(tl.maximum(first + KEYS - 1 - start, 0), QUERIES) * QUERIES
    end, whole_end = length, length
    if WINDOW > 0:
        end = tl.minimum(length, tl.maximum(first + KEYS - 1 + WINDOW - start, 0))
        whole_end = tl.minimum(length, tl.maximum(first + WINDOW - start, 0))
    whole = tl.minimum(whole, tl.cdiv(end, QUERIES) * QUERIES)
    whole_end = tl.maximum(whole, whole_end // QUERIES * QUERIES)
    part = tl.program_id(2)
    for one in range(GROUP // PARTS):
        head = key_head * GROUP + part * (GROUP // PARTS) + one
        q_at = _head(q, head, q_b, q_h, batch)
        do_at = _head(do, head, do_b, do_h, batch)
        lse_at = lse + (batch * heads + head).to(tl.int64) * length
        along_at = along + (batch * heads + head).to(tl.int64) * length
        if CAUSAL:
            dk_block, dv_block = _add_queries(
                dk_block, dv_block, k_block, v_block, q_at, do_at, lse_at, along_at, q_s, do_s,
                keys, low, whole, length, count, start, scale, cap,
                SIZE, PADDED, CAUSAL, WINDOW, CAPPED, QUERIES, True, EXACT,
            )  # fmt: skip
        dk_block, dv_block = _add_queries(
            dk_block, dv_block, k_block, v_block, q_at, do_at, lse_at, along_at, q_s, do_s,
            keys, whole, whole_end, length, count, start, scale, cap,
            SIZE, PADDED, CAUSAL, WINDOW, CAPPED, QUERIES, False, EXACT,
        )  # fmt: skip
        dk_block, dv_block = _add_queries(
            dk_block, dv_block, k_block, v_block, q_at, do_at, lse_at, along_at, q_s, do_s,
            keys, whole_end, end, length, count, start, scale, cap,
            SIZE, PADDED, CAUSAL, WINDOW, CAPPED, QUERIES, True, EXACT,
        )  # fmt: skip
    dk_at = _head(dk, key_head, d_b, d_h, batch) + part.to(tl.int64) * d_p
    dv_at = _head(dv, key_head, d_b, d_h, batch) + part.to(tl.int64) * d_p
    _put(dk_at, dk_block * scale, keys, d_s, count, SIZE, PADDED)
    _put(dv_at, dv_block, keys, d_s, count, SIZE, PADDED)


@triton.jit
def _add_keys(  # type: ignore[no-untyped-def]
    dq, q, do, lse, along, k_at, v_at, k_stride, v_stride, places, begin, end, count, scale, cap,
    SIZE: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    CAPPED: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr, EXACT: tl.constexpr
):  # fmt: skip
    """Add what the keys from `begin` to `end` give to the gradient of a block of queries."""
    for at in range(begin, end, KEYS):
        keys = at + tl.arange(0, KEYS)
        k = _block(k_at, keys, k_stride, count, SIZE, PADDED)
        p, slope = _weights(
            _dot(q, tl.trans(k), EXACT), lse[:, None], places[:, None], keys[None, :], count, scale,
            cap, CAUSAL, WINDOW, CAPPED, MASKED,
        )  # fmt: skip
        v = _block(v_at, keys, v_stride, count, SIZE, PADDED)
        ds = p * (_dot(do, tl.trans(v), EXACT) - along[:, None]) * slope
        dq += _dot(ds.to(k.dtype), k, EXACT)
    return dq


@triton.jit
def _backward_queries(  # type: ignore[no-untyped-def]
    do, q, k, v, dq, lse, along,
    do_b, do_h, do_s, q_b, q_h, q_s, k_b, k_h, k_s, v_b, v_h, v_s, d_b, d_h, d_s,
    heads, length, count, start, scale, cap,
    GROUP: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, CAPPED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    EXACT: tl.constexpr
):  # fmt: skip
    """Program (b, h): a block of queries of a head; the blocks with most keys first."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    rows = block * QUERIES + tl.arange(0, QUERIES)
    places = start + rows
    inside = rows < length
    q_block = _block(_head(q, head, q_b, q_h, batch), rows, q_s, length, SIZE, PADDED)
    do_block = _block(_head(do, head, do_b, do_h, batch), rows, do_s, length, SIZE, PADDED)
    at = tl.program_id(1).to(tl.int64) * length + rows
    lse_block = tl.load(lse + at, mask=inside, other=0.0)
    along_block = tl.load(along + at, mask=inside, other=0.0)
    k_at = _head(k, head // GROUP, k_b, k_h, batch)
    v_at = _head(v, head // GROUP, v_b, v_h, batch)
    dq_block = tl.zeros([QUERIES, PADDED], tl.float32)
    low, whole, whole_end, end = _key_range(
        start + block * QUERIES, count, CAUSAL, WINDOW, QUERIES, KEYS
    )
    if WINDOW > 0:
        dq_block = _add_keys(
            dq_block, q_block, do_block, lse_block, along_block, k_at, v_at, k_s, v_s, places,
            low, whole, count, scale, cap,
            SIZE, PADDED, CAUSAL, WINDOW, CAPPED, KEYS, True, EXACT,
        )  # fmt: skip
    dq_block = _add_keys(
        dq_block, q_block, do_block, lse_block, along_block, k_at, v_at, k_s, v_s, places,
        whole, whole_end, count, scale, cap,
        SIZE, PADDED, CAUSAL, WINDOW, CAPPED, KEYS, False, EXACT,
    )  # fmt: skip
    dq_block = _add_keys(
        dq_block, q_block, do_block, lse_block, along_block, k_at, v_at, k_s, v_s, places,
        whole_end, end, count, scale, cap,
        SIZE, PADDED, CAUSAL, WINDOW, CAPPED, KEYS, True, EXACT,
    )  # fmt: skip
    dq_at = _head(dq, head, d_b, d_h, batch)
    _put(dq_at, dq_block * scale, rows, d_s, length, SIZE, PADDED)
