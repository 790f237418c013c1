"""Stock transformers models of the shape of a DecoderConfig, and the way between their weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from meshwright.models import PRESETS, Decoder, DecoderConfig

_PARTS = {
    "embed": "embed_tokens",
    "attention_norm": "input_layernorm",
    "attention_post_norm": "post_attention_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
    "attention": "self_attn",
    "ffn": "mlp",
    **{name: f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")},
}
_GPT2 = {
    "attention_norm": "ln_1",
    "attention.o": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn.up": "mlp.c_fc",
    "ffn.down": "mlp.c_proj",
}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def stock_config() -> Callable[[str], transformers.PreTrainedConfig]:
    return _stock_config


@pytest.fixture
def stock_twin() -> Callable[[str, Decoder], torch.nn.Module]:
    return _stock_twin


def _stock_config(family: str) -> transformers.PreTrainedConfig:
    """The library's config of the preset tiny-<family>."""
    ours = PRESETS[f"tiny-{family}"]
    if family == "gpt2":
        return _gpt2_config(ours)
    return _CONFIGS[family](**_shared(ours), **_own(family, ours))


def _shared(ours: DecoderConfig) -> dict[str, Any]:
    return {
        "vocab_size": ours.vocab,
        "hidden_size": ours.dim,
        "intermediate_size": ours.ffn,
        "num_hidden_layers": ours.layers,
        "num_attention_heads": ours.heads,
        "num_key_value_heads": ours.key_heads,
        "head_dim": ours.head_size,
        "max_position_embeddings": ours.max_seq,
        "rms_norm_eps": ours.norm_eps,
        "tie_word_embeddings": ours.tied,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }


_CONFIGS = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "gemma2": transformers.Gemma2Config,
    "gemma3": transformers.Gemma3TextConfig,
}


def _own(family: str, ours: DecoderConfig) -> dict[str, Any]:
    plain = {"rope_type": "default", "rope_theta": ours.rope_theta}
    if family == "llama":
        return {"rope_parameters": _llama3_rope(ours)}
    if family == "mistral":
        return {"rope_parameters": plain, "sliding_window": ours.window}
    if family in ("qwen2", "qwen3"):
        return {"rope_parameters": plain}
    rope = plain if family == "gemma2" else _gemma3_rope(ours)
    return {"rope_parameters": rope, **_gemma(ours)}


def _llama3_rope(ours: DecoderConfig) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "rope_theta": ours.rope_theta,
        "factor": ours.rope_factor,
        "low_freq_factor": ours.rope_low_freq_factor,
        "high_freq_factor": ours.rope_high_freq_factor,
        "original_max_position_embeddings": ours.rope_original_seq,
    }


def _gemma3_rope(ours: DecoderConfig) -> dict[str, Any]:
    far = {"rope_type": "linear", "rope_theta": ours.rope_theta, "factor": ours.rope_factor}
    near = {"rope_type": "default", "rope_theta": ours.rope_local_theta}
    return {"full_attention": far, "sliding_attention": near}


def _gemma(ours: DecoderConfig) -> dict[str, Any]:
    kinds = ["full_attention", "sliding_attention"]
    windowed = [ours.window_of(layer) is not None for layer in range(ours.layers)]
    return {
        "query_pre_attn_scalar": round(ours.score_scale**-2),
        "sliding_window": ours.window,
        "layer_types": [kinds[yes] for yes in windowed],
        "attn_logit_softcapping": ours.attention_softcap,
        "final_logit_softcapping": ours.logit_softcap,
    }


def _gpt2_config(ours: DecoderConfig) -> transformers.GPT2Config:
    return transformers.GPT2Config(
        vocab_size=ours.vocab,
        n_embd=ours.dim,
        n_layer=ours.layers,
        n_head=ours.heads,
        n_inner=ours.ffn,
        n_positions=ours.max_seq,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )


def _stock_twin(family: str, model: Decoder) -> torch.nn.Module:
    """The library's eager model with the same weights, in the same dtype."""
    twin = transformers.AutoModelForCausalLM.from_config(
        _stock_config(family), attn_implementation="eager", dtype=model.embed.weight.dtype
    )
    state = model.state_dict()
    weights = _gpt2_weights(state) if family == "gpt2" else _weights(state)
    twin.load_state_dict(weights)
    return twin


def _weights(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    sandwich = any("ffn_post_norm" in name for name in state)
    before_ffn = "pre_feedforward_layernorm" if sandwich else "post_attention_layernorm"
    parts = {**_PARTS, "ffn_norm": before_ffn}
    names = {name: ".".join(parts.get(part, part) for part in name.split(".")) for name in state}
    return {_prefixed(names[name]): tensor for name, tensor in state.items()}


def _prefixed(name: str) -> str:
    return name if name.startswith("lm_head") else f"model.{name}"


def _gpt2_weights(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    heads = {"embed": "wte", "position": "wpe", "norm": "ln_f"}
    weights = {"lm_head.weight": state["lm_head.weight"]}
    for name, tensor in state.items():
        parts = name.split(".")
        if parts[0] in heads:
            weights[f"transformer.{heads[parts[0]]}.{parts[1]}"] = tensor
        elif parts[0] == "layers":
            weights.update(_gpt2_layer(parts[1], ".".join(parts[2:]), state))
    return weights


def _gpt2_layer(layer: str, rest: str, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One entry of the library's layer; its Conv1D weights are [in, out], and q, k, v are one."""
    part, kind = rest.rsplit(".", 1)
    if part in ("attention.q", "attention.k", "attention.v"):
        rows = [state[f"layers.{layer}.attention.{name}.{kind}"] for name in "qkv"]
        part, tensor = "attn.c_attn", torch.cat(rows)
    else:
        part, tensor = _GPT2[part], state[f"layers.{layer}.{rest}"]
    is_matrix = tensor.dim() == 2
    return {f"transformer.h.{layer}.{part}.{kind}": tensor.T if is_matrix else tensor}
