"""Attention forward and backward without autograd.

Shapes: q o [B, H, S, D], k v [B, K, S, D] with H a multiple of K, log-sum-exp [B, H, S] in at
least float32. Backends: `reference` (any device and dtype; scores are materialised), `cpu_flash`
(float32 and bf16 on the CPU), `cudnn` (half precision on CUDA). `backend_of` names the choice.

The torch ops behind the last two are private by name (leading underscore); this file alone calls
them, and tests/runtime/test_kernels.py states what it relies on.
"""

import torch
from torch import Tensor

aten = torch.ops.aten


def backend_of(q: Tensor, causal: bool, window: int, softcap: float) -> str:
    """The backend for these operands."""
    plain = causal and softcap == 0.0 and (window == 0 or window >= q.shape[2])
    half = q.dtype in (torch.bfloat16, torch.float16)
    if q.is_cuda:
        # cuDNN has no backward for one position, whose attention is its value.
        fits = q.shape[3] % 8 == 0 and q.shape[3] <= 128 and q.shape[2] > 1
        return "cudnn" if plain and half and fits else "reference"
    return "cpu_flash" if plain and q.dtype is not torch.float64 else "reference"


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, window: int, softcap: float
) -> tuple[Tensor, Tensor]:
    """(o, log-sum-exp)."""
    backend = backend_of(q, causal, window, softcap)
    if backend == "cudnn":
        return _cudnn(_dense(q), _dense(k), _dense(v), scale)
    if backend == "cpu_flash":
        return _cpu_flash(_dense(q), _dense(k), _dense(v), scale)
    return reference(q, k, v, scale, causal, window, softcap)


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
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv)."""
    backend = backend_of(q, causal, window, softcap)
    if backend != "reference":
        fused = _cudnn_backward if backend == "cudnn" else _cpu_flash_backward
        do, q, k, v, o = (_dense(x) for x in (do, q, k, v, o))
        return fused(do, q, k, v, o, lse, scale)
    return reference_backward(do, q, k, v, o, lse, scale, causal, window, softcap)


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


def _mask(length: int, causal: bool, window: int, device: torch.device) -> Tensor:
    """[S, S] bool: query i (row) sees key j."""
    i = torch.arange(length, device=device).unsqueeze(1)
    j = torch.arange(length, device=device).unsqueeze(0)
    seen = j <= i if causal else torch.ones_like(j <= i)
    return seen & (j > i - window) if window else seen


def reference(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, window: int, softcap: float
) -> tuple[Tensor, Tensor]:
    keys, values = _repeat(k, q.shape[1]), _repeat(v, q.shape[1])
    scores, _ = _scores(q, keys, scale, softcap)
    seen = _mask(q.shape[2], causal, window, q.device)
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
) -> tuple[Tensor, Tensor, Tensor]:
    """FlashAttention's backward (Dao et al. 2022, algorithm 4), scores recomputed whole."""
    heads = q.shape[1]
    keys, values = _repeat(k, heads), _repeat(v, heads)
    scores, bounded = _scores(q, keys, scale, softcap)
    seen = _mask(q.shape[2], causal, window, q.device)
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


def _cpu_flash(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    keys, values = _repeat(k, q.shape[1]), _repeat(v, q.shape[1])
    o, lse = aten._scaled_dot_product_flash_attention_for_cpu(
        q, keys, values, 0.0, True, scale=scale
    )
    return o, lse


def _cpu_flash_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    keys, values = _repeat(k, q.shape[1]), _repeat(v, q.shape[1])
    dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        do, q, keys, values, o, lse, 0.0, True, scale=scale
    )
    return dq, _sum_groups(dk, k.shape[1]), _sum_groups(dv, v.shape[1])


def _cudnn(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    out = aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, 0.0, True, False, scale=scale
    )
    return out[0], out[1].view(q.shape[:3])


def _cudnn_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    length = q.shape[2]
    # Without dropout the random state is not read; with no bias neither is its operand.
    seed = torch.zeros((), dtype=torch.int64, device=q.device)
    dq, dk, dv = aten._scaled_dot_product_cudnn_attention_backward(
        do, q, k, v, o, lse.unsqueeze(-1), seed, seed, None, None, None, length, length, 0.0, True,
        scale=scale,
    )  # fmt: skip
    return dq, dk, dv
