"""The gated recurrence (recurrence.py) as two Triton kernels, which hold the states of some heads.

A program goes through the tokens with the states of a block of heads and columns in registers: the
columns of a state never meet, so that blocks of them are programs of their own. Backward keeps the
states at every chunk's beginning, makes the others of a chunk again when it comes, and adds up
what the blocks of columns give of dq, dk, dg and dbeta.

Shapes, of any strides: q k [B, S, H, K], v do [B, S, H, V], g [B, S, H, K] or [B, S, H], beta
[B, S, H]. States are float32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_CHUNK = 32  # tokens whose states backward makes again at once
_ELEMENTS = 2048  # of the states that a program holds, where they are of one head
_FEW = 128  # where they are of several heads
_OF_A_WARP = 2048  # warps of a program wait for each other at every sum, so that one is faster


def forward(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, delta: bool) -> Tensor:
    """Return the output, as v."""
    out = torch.empty_like(v)
    grid, sizes, blocks = _blocks(k, v)
    strides = *_strides(q, k, v, g, beta), *out.stride()
    _forward_kernel[grid](
        q, k, v, g, beta, out, *sizes, *strides, BY_ROW=g.dim() == 4, DELTA=delta, **blocks
    )
    return out


def backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, delta: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v, g and beta, in their dtypes."""
    grid, sizes, blocks = _blocks(k, v)
    programs, parts = grid
    held = programs * parts, blocks["HEADS"] * blocks["ROWS"] * blocks["COLUMNS"]
    chunks = triton.cdiv(k.shape[1], _CHUNK)
    kept = k.new_empty(held[0], chunks, held[1], dtype=torch.float32)
    again = k.new_empty(held[0], _CHUNK, held[1], dtype=torch.float32)
    dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    others = [
        k.new_empty(parts, *x.shape, dtype=x.dtype if parts == 1 else torch.float32)
        for x in (q, k, g, beta)
    ]
    strides = *_strides(q, k, v, g, beta), *do.stride()
    _backward_kernel[grid](
        *(q, k, v, g, beta, do, kept, again, dv, *others, *sizes, *strides),
        *(k.numel(), beta.numel(), chunks),
        BY_ROW=g.dim() == 4,
        DELTA=delta,
        CHUNK=_CHUNK,
        **blocks,
    )
    if parts == 1:
        dq, dk, dg, dbeta = (x[0] for x in others)
    else:
        pairs = zip(others, (q, k, g, beta), strict=True)
        dq, dk, dg, dbeta = (x.sum(0, dtype=torch.float32).to(y.dtype) for x, y in pairs)
    return dq, dk, dv, dg, dbeta


def _blocks(k: Tensor, v: Tensor) -> tuple[tuple[int, int], tuple[int, ...], dict[str, int]]:
    """Return the programs, the sizes S, H, K and V, and what a program holds."""
    batch, length, heads, rows = k.shape
    columns = v.shape[3]
    wide = triton.next_power_of_2(rows)
    part = min(triton.next_power_of_2(columns), max(1, _ELEMENTS // wide))
    several = max(1, min(triton.next_power_of_2(heads), _FEW // (wide * part)))
    grid = batch * triton.cdiv(heads, several), triton.cdiv(columns, part)
    warps = 1 if several * wide * part <= _OF_A_WARP else 4
    blocks = {"HEADS": several, "ROWS": wide, "COLUMNS": part, "num_warps": warps}
    return grid, (length, heads, rows, columns), blocks


def _strides(*operands: Tensor) -> tuple[int, ...]:
    """Return the strides of the operands; of g without a dim of K with 0 for it."""
    q, k, v, g, beta = operands
    of_g = g.stride() if g.dim() == 4 else (*g.stride(), 0)
    return *q.stride(), *k.stride(), *v.stride(), *of_g, *beta.stride()


@triton.jit
def _place(heads, HEADS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the batch, heads, rows and columns of a program."""
    over = tl.cdiv(heads, HEADS)
    batch = (tl.program_id(0) // over).to(tl.int64)
    h = (tl.program_id(0) % over) * HEADS + tl.arange(0, HEADS)
    return batch, h, tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)


@triton.jit
def _at(values, batch, heads, others):  # type: ignore[no-untyped-def]
    """Return places of values [HEADS, ROWS or COLUMNS], by what each dim adds."""
    return values + batch + heads[:, None] + others[None, :]


@triton.jit
def _step(state, k, v, decay, beta, DELTA: tl.constexpr):  # type: ignore[no-untyped-def]
    """The state before a token -> (P, the value that beta multiplies, the state after it)."""
    decayed = decay * state
    value = v
    if DELTA:
        value = v - tl.sum(k[:, :, None] * decayed, 1)
    return decayed, value, decayed + k[:, :, None] * (beta[:, None] * value)[:, None, :]


@triton.jit
def _decay(at, on, BY_ROW: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the decay of a token's states, [HEADS, ROWS or 1, 1]."""
    decay = tl.exp(tl.load(at, mask=on, other=0.0).to(tl.float32))
    if BY_ROW:
        return decay[:, :, None]
    else:
        return decay[:, None, None]


@triton.jit
def _forward_kernel(  # type: ignore[no-untyped-def]
    q, k, v, g, beta, out, length, heads, rows, columns,
    q_b, q_s, q_h, q_k, k_b, k_s, k_h, k_k, v_b, v_s, v_h, v_v, g_b, g_s, g_h, g_k,
    beta_b, beta_s, beta_h, o_b, o_s, o_h, o_v,
    BY_ROW: tl.constexpr, DELTA: tl.constexpr,
    HEADS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    batch, h, r, c = _place(heads, HEADS, ROWS, COLUMNS)
    on_h = h < heads
    on_r, on_c = on_h[:, None] & (r < rows)[None, :], on_h[:, None] & (c < columns)[None, :]
    q_at = _at(q, batch * q_b, h * q_h, r * q_k)
    k_at = _at(k, batch * k_b, h * k_h, r * k_k)
    v_at = _at(v, batch * v_b, h * v_h, c * v_v)
    o_at = _at(out, batch * o_b, h * o_h, c * o_v)
    beta_at = beta + batch * beta_b + h * beta_h
    if BY_ROW:
        g_at = _at(g, batch * g_b, h * g_h, r * g_k)
        on_g = on_r
    else:
        g_at = g + batch * g_b + h * g_h
        on_g = on_h
    state = tl.zeros([HEADS, ROWS, COLUMNS], tl.float32)
    for _ in range(length):
        of_k = tl.load(k_at, mask=on_r, other=0.0).to(tl.float32)
        of_q = tl.load(q_at, mask=on_r, other=0.0).to(tl.float32)
        of_v = tl.load(v_at, mask=on_c, other=0.0).to(tl.float32)
        of_beta = tl.load(beta_at, mask=on_h, other=0.0).to(tl.float32)
        _, _, state = _step(state, of_k, of_v, _decay(g_at, on_g, BY_ROW), of_beta, DELTA)
        tl.store(o_at, tl.sum(of_q[:, :, None] * state, 1), mask=on_c)
        q_at += q_s
        k_at += k_s
        v_at += v_s
        g_at += g_s
        beta_at += beta_s
        o_at += o_s


@triton.jit
def _backward_kernel(  # type: ignore[no-untyped-def]
    q, k, v, g, beta, do, kept, again, dv, dq, dk, dg, dbeta, length, heads, rows, columns,
    q_b, q_s, q_h, q_k, k_b, k_s, k_h, k_k, v_b, v_s, v_h, v_v, g_b, g_s, g_h, g_k,
    beta_b, beta_s, beta_h, o_b, o_s, o_h, o_v, of_rows, of_heads, chunks,
    BY_ROW: tl.constexpr, DELTA: tl.constexpr, CHUNK: tl.constexpr,
    HEADS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    batch, h, r, c = _place(heads, HEADS, ROWS, COLUMNS)
    on_h = h < heads
    on_r, on_c = on_h[:, None] & (r < rows)[None, :], on_h[:, None] & (c < columns)[None, :]
    q_at = _at(q, batch * q_b, h * q_h, r * q_k)
    k_at = _at(k, batch * k_b, h * k_h, r * k_k)
    v_at = _at(v, batch * v_b, h * v_h, c * v_v)
    do_at = _at(do, batch * o_b, h * o_h, c * o_v)
    beta_at = beta + batch * beta_b + h * beta_h
    part = tl.program_id(1).to(tl.int64)
    # Gradients are whole: tokens are `heads` times a row of theirs apart.
    line = batch * length * heads + h
    dv_at = _at(dv, 0, line * columns, c)
    dq_at = _at(dq, part * of_rows, line * rows, r)
    dk_at = _at(dk, part * of_rows, line * rows, r)
    dbeta_at = dbeta + part * of_heads + line
    if BY_ROW:
        g_at = _at(g, batch * g_b, h * g_h, r * g_k)
        dg_at = _at(dg, part * of_rows, line * rows, r)
        on_g = on_r
    else:
        g_at = g + batch * g_b + h * g_h
        dg_at = dg + part * of_heads + line
        on_g = on_h
    whole: tl.constexpr = HEADS * ROWS * COLUMNS
    inside = (
        tl.arange(0, HEADS)[:, None, None] * (ROWS * COLUMNS)
        + r[None, :, None] * COLUMNS
        + tl.arange(0, COLUMNS)[None, None, :]
    )
    program = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + part
    kept_at = kept + program * chunks * whole + inside
    again_at = again + program * CHUNK * whole + inside

    origin = batch * 0  # of places that may lie beyond 2^31
    state = tl.zeros([HEADS, ROWS, COLUMNS], tl.float32)
    for t in range(length):
        if t % CHUNK == 0:
            tl.store(kept_at + (origin + t // CHUNK) * whole, state)
        at = origin + t
        of_k = tl.load(k_at + at * k_s, mask=on_r, other=0.0).to(tl.float32)
        of_v = tl.load(v_at + at * v_s, mask=on_c, other=0.0).to(tl.float32)
        of_beta = tl.load(beta_at + at * beta_s, mask=on_h, other=0.0).to(tl.float32)
        decay = _decay(g_at + at * g_s, on_g, BY_ROW)
        _, _, state = _step(state, of_k, of_v, decay, of_beta, DELTA)
    tl.debug_barrier()

    dstate = tl.zeros([HEADS, ROWS, COLUMNS], tl.float32)
    for n in range(chunks):
        first = (chunks - 1 - n) * CHUNK
        state = tl.load(kept_at + (origin + chunks - 1 - n) * whole)
        for j in range(CHUNK):
            at = origin + first + j
            on = on_h & (at + h * 0 < length)  # the last chunk may be shorter
            on_rows, on_columns = on_r & on[:, None], on_c & on[:, None]
            tl.store(again_at + j * whole, state)
            of_k = tl.load(k_at + at * k_s, mask=on_rows, other=0.0).to(tl.float32)
            of_v = tl.load(v_at + at * v_s, mask=on_columns, other=0.0).to(tl.float32)
            of_beta = tl.load(beta_at + at * beta_s, mask=on, other=0.0).to(tl.float32)
            decay = _decay(g_at + at * g_s, on_rows if BY_ROW else on, BY_ROW)
            _, _, state = _step(state, of_k, of_v, decay, of_beta, DELTA)
        tl.debug_barrier()
        for j in range(CHUNK):
            at = origin + first + CHUNK - 1 - j
            on = on_h & (at + h * 0 < length)  # the last chunk may be shorter
            on_rows, on_columns = on_r & on[:, None], on_c & on[:, None]
            before = tl.load(again_at + (CHUNK - 1 - j) * whole)
            of_q = tl.load(q_at + at * q_s, mask=on_rows, other=0.0).to(tl.float32)
            of_k = tl.load(k_at + at * k_s, mask=on_rows, other=0.0).to(tl.float32)
            of_v = tl.load(v_at + at * v_s, mask=on_columns, other=0.0).to(tl.float32)
            of_do = tl.load(do_at + at * o_s, mask=on_columns, other=0.0).to(tl.float32)
            of_beta = tl.load(beta_at + at * beta_s, mask=on, other=0.0).to(tl.float32)
            decay = _decay(g_at + at * g_s, on_rows if BY_ROW else on, BY_ROW)
            decayed, value, after = _step(before, of_k, of_v, decay, of_beta, DELTA)
            dstate += of_q[:, :, None] * of_do[:, None, :]
            token = at * heads
            tl.store(dq_at + token * rows, tl.sum(after * of_do[:, None, :], 2), mask=on_rows)
            written = of_beta[:, None] * value
            of_dk = tl.sum(dstate * written[:, None, :], 2)
            dwritten = tl.sum(of_k[:, :, None] * dstate, 1)
            tl.store(dbeta_at + token, tl.sum(dwritten * value, 1), mask=on)
            dvalue = of_beta[:, None] * dwritten
            tl.store(dv_at + token * columns, dvalue, mask=on_columns)
            if DELTA:
                of_dk -= tl.sum(decayed * dvalue[:, None, :], 2)
                dstate -= of_k[:, :, None] * dvalue[:, None, :]
            tl.store(dk_at + token * rows, of_dk, mask=on_rows)
            of_dg = tl.sum(dstate * decayed, 2)
            if BY_ROW:
                tl.store(dg_at + token * rows, of_dg, mask=on_rows)
            else:
                tl.store(dg_at + token, tl.sum(of_dg, 1), mask=on)
            dstate = decay * dstate
        tl.debug_barrier()
