"""Attention forward and backward without autograd.

Shapes: q o [B, H, S, D], k v [B, K, S, D] with H a multiple of K, log-sum-exp [B, H, S] in at
least float32. Backends: `reference` (any device and dtype; scores are materialised), `cpu_flash`
(float32 and half precision on the CPU), `cudnn` and `triton` (half precision on CUDA; the latter is
triton_attention.py, for what the former does not take). `backend_of` names the choice;
`implementations` of the op's definition says the same, and a test compares them.

The torch ops behind `cpu_flash` and `cudnn` are private by name (leading underscore); this file
alone calls them, and tests/runtime/test_kernels.py states what it relies on.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from .fused_attention import triton, triton_backward

aten = torch.ops.aten


def backend_of(
    q: Tensor, causal: bool, window: int, softcap: float, keys: int = 0, value_dim: int = 0
) -> str:
    """The backend for these operands. keys: their number, where queries are a shard of them.
    value_dim: size of a head of values, where it is not that of queries."""
    unbounded = window == 0 or (causal and window >= (keys or q.shape[2]))
    plain = softcap == 0.0 and unbounded
    half = q.dtype in (torch.bfloat16, torch.float16)
    alike = value_dim in (0, q.shape[3])
    if q.is_cuda:
        # cuDNN has no backward for one position, whose attention is its value.
        fits = q.shape[3] % 8 == 0 and q.shape[3] <= 128 and q.shape[2] > 1
        if plain and half and fits:
            return "cudnn"
        return "triton" if half and alike and q.shape[3] <= 256 else "reference"
    return "cpu_flash" if plain and alike and q.dtype is not torch.float64 else "reference"


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    start: int = 0,
    tail: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(o, log-sum-exp). start: the place among the keys of the first query; the queries are then
    those of a shard, the keys and values those of the whole sequence, or of the shard and what its
    window sees before it. tail: the place of the first query of a mirrored shard's second half."""
    if tail is not None:
        return mirrored(q, k, v, (start, tail), scale, causal, window, softcap)
    if q.shape[2] != k.shape[2]:
        return sharded(q, k, v, start, scale, causal, window, softcap)
    backend = backend_of(q, causal, window, softcap, value_dim=v.shape[3])
    if backend in _PLACED:
        return _PLACED[backend](q, k, v, scale, causal, window, softcap)
    return _fused(backend)(_dense(q), _dense(k), _dense(v), scale, causal)


def _fused(backend: str) -> Callable[..., tuple[Tensor, Tensor]]:
    return _cudnn if backend == "cudnn" else _cpu_flash


def _fused_backward(backend: str) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    return _cudnn_backward if backend == "cudnn" else _cpu_flash_backward


def attention_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    *,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    start: int = 0,
    tail: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv); of a shard of queries, the shares that these have in dk and dv."""
    if tail is not None:
        both = (start, tail)
        return mirrored_backward(do, q, k, v, o, lse, both, scale, causal, window, softcap)
    if q.shape[2] != k.shape[2]:
        return sharded_backward(do, q, k, v, o, lse, start, scale, causal, window, softcap)
    backend = backend_of(q, causal, window, softcap, value_dim=v.shape[3])
    if backend in _PLACED:
        run = _PLACED_BACKWARD[backend]
        return run(do, q, k, v, o, lse, scale, causal, window, softcap)
    do, q, k, v, o = (_dense(x) for x in (do, q, k, v, o))
    return _fused_backward(backend)(do, q, k, v, o, lse, scale, causal)


def sharded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    start: int,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    """Attention of queries start..stop over the whole sequence's keys.

    Causal backends that cannot place queries attend to the keys before `start` (the past) and to
    the square of the queries' own places; the two are joined by their log-sum-exps
    (FlashAttention, Dao et al. 2022, 3.1).
    """
    stop = start + q.shape[2]
    backend = backend_of(q, causal, window, softcap, k.shape[2], v.shape[3])
    if backend in _PLACED:
        return _PLACED[backend](q, k, v, scale, causal, window, softcap, start)
    q, k, v = (_dense(x) for x in (q, k, v))
    if not causal:
        return _fused(backend)(q, k, v, scale, False)
    own = _fused(backend)(q, k[:, :, start:stop], v[:, :, start:stop], scale, True)
    if start == 0:
        return own
    return _joined(_fused(backend)(q, k[:, :, :start], v[:, :, :start], scale, False), own)


def mirrored(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: tuple[int, int],
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    """Attention of two halves of queries, each over the keys up to its own last place."""
    run = partial(attention, scale=scale, causal=causal, window=window, softcap=softcap)
    parts = []
    for half, start in zip(_halves(q), starts, strict=True):
        keys, values = (_prefix(x, start + half.shape[2], causal) for x in (k, v))
        parts.append(run(half, keys, values, start=start))
    o, lse = zip(*parts, strict=True)
    return torch.cat(o, dim=2), torch.cat(lse, dim=2)


def mirrored_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    starts: tuple[int, int],
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `mirrored`; those of keys and values are summed over both halves."""
    dk, dv, dq = torch.zeros_like(k), torch.zeros_like(v), []
    run = partial(attention_backward, scale=scale, causal=causal, window=window, softcap=softcap)
    halves = zip(*map(_halves, (do, q, o, lse)), starts, strict=True)
    for do_half, q_half, o_half, lse_half, start in halves:
        stop = start + q_half.shape[2]
        keys, values = (_prefix(x, stop, causal) for x in (k, v))
        found = run(do_half, q_half, keys, values, o_half, lse_half, start=start)
        dq.append(found[0])
        _prefix(dk, stop, causal).add_(found[1])
        _prefix(dv, stop, causal).add_(found[2])
    return torch.cat(dq, dim=2), dk, dv


def _halves(x: Tensor) -> list[Tensor]:
    """Both halves of queries, or of what belongs to them, each one block as fused backends read."""
    return [half.contiguous() for half in x.chunk(2, dim=2)]


def _prefix(x: Tensor, stop: int, causal: bool) -> Tensor:
    """The keys or values that queries before `stop` can see."""
    return x[:, :, :stop] if causal else x


def _joined(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The output and log-sum-exp over the keys of both parts."""
    lse = torch.logaddexp(a[1], b[1])
    parts = (o.to(lse.dtype) * torch.exp(part - lse).unsqueeze(-1) for o, part in (a, b))
    return sum(parts, torch.zeros((), dtype=lse.dtype, device=lse.device)).to(a[0].dtype), lse


def sharded_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    start: int,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `sharded`. Each part runs with the joined output and log-sum-exp, whose
    probabilities are those of all keys; keys after the shard get none."""
    stop = start + q.shape[2]
    backend = backend_of(q, causal, window, softcap, k.shape[2], v.shape[3])
    if backend in _PLACED:
        run = _PLACED_BACKWARD[backend]
        return run(do, q, k, v, o, lse, scale, causal, window, softcap, start)
    fused = _fused_backward(backend)
    do, q, k, v, o = (_dense(x) for x in (do, q, k, v, o))
    if not causal:
        return fused(do, q, k, v, o, lse, scale, False)
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    dq = torch.zeros_like(q)
    for first, last, square in ((0, start, False), (start, stop, True)):
        if first < last:
            keys, values = k[:, :, first:last], v[:, :, first:last]
            parts = fused(do, q, keys, values, o, lse, scale, square)
            dq = dq + parts[0]
            dk[:, :, first:last], dv[:, :, first:last] = parts[1:]
    return dq, dk, dv


def _dense(x: Tensor) -> Tensor:
    """Heads whole in memory, as the fused kernels read them without looking: stride 1 along D.

    A shard gathered along D has another stride; the kernels would read past it.
    """
    return x if x.stride(-1) == 1 else x.contiguous()


def _repeat(x: Tensor, heads: int) -> Tensor:
    return x.repeat_interleave(heads // x.shape[1], dim=1)


def _sum_groups(dx: Tensor, heads: int) -> Tensor:
    """Gradients of repeated heads summed back: [B, H, S, D] -> [B, heads, S, D]."""
    b, h, s, d = dx.shape
    return dx if h == heads else dx.view(b, heads, h // heads, s, d).sum(2)


def _scores(q: Tensor, k: Tensor, scale: float, softcap: float) -> tuple[Tensor, Tensor | None]:
    """(scores, tanh of the capped scores) in at least float32."""
    kind = torch.promote_types(q.dtype, torch.float32)
    scores = (q.to(kind) @ k.to(kind).transpose(-2, -1)) * scale
    if softcap == 0.0:
        return scores, None
    bounded = torch.tanh(scores / softcap)
    return bounded * softcap, bounded


def _mask(q: Tensor, k: Tensor, causal: bool, window: int, start: int) -> Tensor:
    """[queries, keys] bool: query start + i (row i) sees key j."""
    i = start + torch.arange(q.shape[2], device=q.device).unsqueeze(1)
    j = torch.arange(k.shape[2], device=q.device).unsqueeze(0)
    seen = j <= i if causal else torch.ones_like(j <= i)
    return seen & (j > i - window) if window else seen


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    start: int = 0,
) -> tuple[Tensor, Tensor]:
    """(o, log-sum-exp), scores materialised."""
    keys, values = _repeat(k, q.shape[1]), _repeat(v, q.shape[1])
    scores, _ = _scores(q, keys, scale, softcap)
    seen = _mask(q, k, causal, window, start)
    scores = torch.where(seen, scores, float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)
    p = torch.exp(scores - lse.unsqueeze(-1))
    return (p @ values.to(p.dtype)).to(q.dtype), lse


def reference_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    start: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """FlashAttention's backward (Dao et al. 2022, algorithm 4), scores recomputed whole."""
    heads = q.shape[1]
    keys, values = _repeat(k, heads), _repeat(v, heads)
    scores, bounded = _scores(q, keys, scale, softcap)
    seen = _mask(q, k, causal, window, start)
    p = torch.where(seen, torch.exp(scores - lse.unsqueeze(-1)), 0.0)
    kind = p.dtype
    do, o = do.to(kind), o.to(kind)
    dv = p.transpose(-2, -1) @ do
    dp = do @ values.to(kind).transpose(-2, -1)
    ds = p * (dp - (do * o).sum(-1, keepdim=True))
    if bounded is not None:
        ds = ds * (1.0 - bounded * bounded)
    ds = ds * scale
    dq = ds @ keys.to(kind)
    dk = ds.transpose(-2, -1) @ q.to(kind)
    dk, dv = _sum_groups(dk, k.shape[1]), _sum_groups(dv, v.shape[1])
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def _cpu_flash(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    keys, values = _repeat(k, q.shape[1]), _repeat(v, q.shape[1])
    o, lse = aten._scaled_dot_product_flash_attention_for_cpu(
        q, keys, values, 0.0, causal, scale=scale
    )
    return o, lse


def _cpu_flash_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    keys, values = _repeat(k, q.shape[1]), _repeat(v, q.shape[1])
    dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        do, q, keys, values, o, lse, 0.0, causal, scale=scale
    )
    return dq, _sum_groups(dk, k.shape[1]), _sum_groups(dv, v.shape[1])


def _cudnn(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    out = aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, 0.0, causal, False, scale=scale
    )
    return out[0], out[1].view(q.shape[:3])


def _cudnn_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    # Without dropout the random state is not read; with no bias neither is its operand.
    seed = torch.zeros((), dtype=torch.int64, device=q.device)
    dq, dk, dv = aten._scaled_dot_product_cudnn_attention_backward(
        do, q, k, v, o, lse.unsqueeze(-1), seed, seed, None, None, None, q.shape[2], k.shape[2],
        0.0, causal, scale=scale,
    )  # fmt: skip
    return dq, dk, dv


# Backends that take queries which begin anywhere among the keys.
_PLACED = {"reference": reference, "triton": triton}
_PLACED_BACKWARD = {"reference": reference_backward, "triton": triton_backward}
