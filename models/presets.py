"""Named models. The small ones read bytes and divide by four in every size."""

from __future__ import annotations

from dataclasses import replace

from .config import DecoderConfig

_TINY = DecoderConfig(
    dim=128, layers=4, heads=8, kv_heads=4, ffn=448, vocab=256, max_seq=2048, rope_theta=10_000.0
)
_VERY_SMALL = replace(_TINY, dim=64, layers=2, head_dim=8, ffn=128)

_LLAMA3 = DecoderConfig(
    dim=4096,
    layers=32,
    heads=32,
    kv_heads=8,
    ffn=14336,
    vocab=128256,
    max_seq=8192,
    rope_theta=500_000.0,
)
_LLAMA3_LONG = replace(_LLAMA3, max_seq=131072, rope_scaling="llama3")

_QWEN3 = DecoderConfig(
    dim=4096,
    layers=36,
    heads=32,
    kv_heads=8,
    head_dim=128,
    ffn=12288,
    vocab=151936,
    max_seq=40960,
    norm_eps=1e-6,
    qk_norm=True,
    rope_theta=1_000_000.0,
)
_GEMMA3 = DecoderConfig(
    dim=2560,
    layers=34,
    heads=8,
    kv_heads=4,
    head_dim=256,
    ffn=10240,
    vocab=262208,
    max_seq=131072,
    norm="rms_plus_one",
    norm_eps=1e-6,
    post_norms=True,
    qk_norm=True,
    activation="gelu_tanh",
    rope_theta=1_000_000.0,
    rope_local_theta=10_000.0,
    rope_scaling="linear",
    rope_factor=8.0,
    window=1024,
    window_pattern=(True, True, True, True, True, False),
    query_scale=256**-0.5,
    embed_scale=2560**0.5,
    tied=True,
)
_GPT2 = DecoderConfig(
    dim=768,
    layers=12,
    heads=12,
    ffn=3072,
    vocab=50257,
    max_seq=1024,
    norm="layer",
    activation="gelu_tanh",
    gated=False,
    bias="all",
    positions="learned",
    tied=True,
    scaled_residual_init=True,
)


def _megatron(dim: int, layers: int, heads: int) -> DecoderConfig:
    """Korthikanti et al. 2022 (arXiv 2205.05198), table 3."""
    return replace(
        _GPT2, dim=dim, layers=layers, heads=heads, ffn=4 * dim, vocab=51200, max_seq=2048
    )


_TINY_GEMMA3 = replace(
    _GEMMA3,
    dim=64,
    layers=4,
    heads=8,
    head_dim=8,
    ffn=128,
    vocab=256,
    max_seq=2048,
    window=8,
    window_pattern=(True, True, True, False),
    logit_softcap=30.0,
    query_scale=8**-0.5,
    embed_scale=8.0,
)
_TINY_GEMMA2 = replace(
    _TINY_GEMMA3,
    qk_norm=False,
    rope_theta=10_000.0,
    rope_local_theta=None,
    rope_scaling="none",
    rope_factor=1.0,
    window_pattern=(True, False),
    attention_softcap=50.0,
)

PRESETS: dict[str, DecoderConfig] = {
    "tiny": _TINY,
    "tiny-2m": replace(_TINY, dim=192, ffn=640),
    "tiny-llama": replace(
        _VERY_SMALL, rope_scaling="llama3", rope_factor=8.0, rope_original_seq=64
    ),
    "tiny-mistral": replace(_VERY_SMALL, window=8),
    "tiny-qwen2": replace(_VERY_SMALL, bias="qkv", norm_eps=1e-6, tied=True),
    "tiny-qwen3": replace(_VERY_SMALL, qk_norm=True, norm_eps=1e-6),
    "tiny-gemma2": _TINY_GEMMA2,
    "tiny-gemma3": _TINY_GEMMA3,
    "tiny-gpt2": replace(_GPT2, dim=64, layers=2, heads=8, ffn=256, vocab=256, max_seq=2048),
    "llama-125m": replace(
        _LLAMA3, dim=768, layers=12, heads=12, kv_heads=12, ffn=2048, vocab=50304, tied=True
    ),
    "llama-1b": replace(
        _LLAMA3_LONG, dim=2048, layers=16, ffn=8192, head_dim=64, rope_factor=32.0, tied=True
    ),
    "llama-7b": _LLAMA3,
    "llama-13b": replace(_LLAMA3, dim=5120, layers=40, heads=40, ffn=17920),
    "llama-29b": replace(_LLAMA3, dim=6144, layers=56, heads=48, ffn=21504),
    "llama-70b": replace(_LLAMA3, dim=8192, layers=80, heads=64, ffn=28672),
    "llama-405b": replace(
        _LLAMA3_LONG, dim=16384, layers=126, heads=128, ffn=53248, rope_factor=8.0
    ),
    "qwen3-8b": _QWEN3,
    "gemma3-4b": _GEMMA3,
    "gpt2": _GPT2,
    "gpt-22b": _megatron(6144, 48, 64),
    "gpt-175b": _megatron(12288, 96, 96),
    "gpt-530b": _megatron(20480, 105, 128),
    "gpt-1t": _megatron(25600, 128, 160),
}
