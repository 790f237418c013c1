"""A tiny config of any language model of text of `transformers`, by one rule for all classes.

The rule divides what the default config says: each field that a pattern below names takes the small
number beside it, where the class has the field and its default is a larger integer. Everything else
keeps the default of the class, so that its windows, biases, caps and layer patterns stay. Where the
library refuses the small numbers together, OWN states what a class needs instead, and why.
"""

import re
from typing import Any

import transformers
from models_options import random_options
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

VOCAB, WIDTH, LAYERS, POSITIONS = 128, 64, 2, 128

# The first pattern that fits the whole name of a field counts.
_SIZES = (
    (r"\w*vocab_size\w*|n_vocab|\w*_vocab", VOCAB),
    (
        r"max_((en|de)coder_)?position_embeddings|n_positions|n_ctx|max_sequence_length|max_seq_len|seq_length",
        128,
    ),
    (r"(hidden|embedding|embed|model|word_embed_proj)_(size|dim)|d_model|n_embd|dim_model", WIDTH),
    (r"emb_dim|attention_hidden_size|(in|out)put_embedding_size|mamba_d_ssm", WIDTH),
    (r"hidden_size_per_layer_input|\w+_embed_dim|hc_lowrank|rel_extent", 16),
    (
        r"(num_|n_)?(hidden_|encoder_|decoder_|mtp_)?layers?|num_hidden_layers|n_layer|num_layers",
        LAYERS,
    ),
    (r"(moe|expert|shared_expert)\w*(intermediate_size|hidden_size)\w*", 32),
    (r"\w*intermediate_size\w*|ffn_dim|n_inner|d_?ff|dim_ff|ffn_hidden_size", 96),
    (r"(en|de)coder_ffn_dim|inner_dim|d_inner", 96),
    (r"(num_|n_|multi_query_)?(key_value|kv)_heads|num_key_value_heads|multi_query_group_num", 2),
    (r"(num_|n_)?((en|de)coder_)?(attention_|attn_)?heads?|n_head|num_heads", 4),
    (r"(linear|swa|global)?_?num_(key|value)_heads|linear_num_key_heads|linear_num_value_heads", 4),
    (r"qk_rope_\w+|rotary_dim", 8),
    (r"qk_head_dim", 24),
    (r"first_k_dense_replace", 1),
    (r"index_(topk|n_heads)", 4),
    (r"\w*head_dim\w*|\w*head_size|qk_nope_\w+|v_head_dim|d_kv|dim_head|kv_channels", 16),
    (r"\w*lora_rank|\w*latent_size|\w*lora_dim", 24),
    (r"(num_|n_)?(local_|routed_)?experts|moe_num_experts|num_moe_experts", 4),
    (r"(num_)?(experts_per_tok(en)?|experts_top_k|moe_k|moe_top_?k|top_k)", 2),
    (r"(n|num|num_expert)_group|topk_group", 1),
    (r"zero_expert_num|split_ngram_parts|make_ngram_vocab_size_divisible_by", 2),
    (r"ngram_vocab_size_base", 64),
    (r"mamba_(n|num)_heads", 4),
    (r"(mamba_)?(d_state|state_size|ssm_state_size|d_ssm_state)", 8),
    (r"\w*chunk_size\w*", 8),
    (r"\w*time_step_rank|\w*dt_rank", 4),
    (r"\w*(sliding_window|window_size|window|attention_window)\w*", 6),
)

# Fields that stay equal to another where their defaults are.
_ALIKE = (("head_dim", "qk_rope_head_dim"), ("num_key_value_heads", "num_attention_heads"))

_OF_THE_LIBRARY = ("model_type", "transformers_version")
_DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_MOST_LAYERS = 4
_NO_HEADS = {"head_dim": 16}  # None by default, and read as a number
_EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
_MAMBA2 = {"num_heads": 8, "head_dim": 16, "n_groups": 2}

# What the rule above does not give: fields of classes whose defaults are empty, or fit no other
# sizes than their own.
OWN: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {"rope_parameters": {
        kind: {"rope_type": "default", "rope_theta": 1e4}
        for kind in ("full_attention", "sliding_attention")
    }},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 32, "hidden_size": WIDTH, "moe_top_k": 2},
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": _EXPERTS,
    "dory": {
        "n_input_layers": 2, "n_recurrent_layers": 2, "n_output_layers": 2,
        "num_hidden_layers": 6, "layer_types": ["sliding_attention", "mlp"] * 3,
    },
    "dots3_note_text": {
        "layer_types": ["indexed_attention"] * 2, "per_layer_config": {}, "head_dim": 24,
        "num_hidden_layers": 2, "mlp_layer_types": ["dense", "sparse"],
    },
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_head": 8},
    "flint": {"mlp_only_layers": [0]},
    "gemma3n_text": {
        "num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": None,
        "intermediate_size": 96, "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "hunyuan_v1_dense": _NO_HEADS,
    "hunyuan_v1_moe": _NO_HEADS,
    "jamba": {
        "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3},
    "mamba2": _MAMBA2,
    "ministral": _NO_HEADS,
    "nllb-moe": {"encoder_sparse_step": 2, "decoder_sparse_step": 2},
    "nemotron": _NO_HEADS | {"num_key_value_heads": 2},
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2},
    "reformer": {
        "axial_pos_embds_dim": [32, 32], "axial_pos_shape": [8, 16],
        "attn_layers": ["local", "lsh"], "local_attn_chunk_length": 8, "lsh_attn_chunk_length": 8,
        "feed_forward_size": 96, "is_decoder": True, "num_buckets": 4,
    },
    "switch_transformers": {
        "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1,
        "router_jitter_noise": 0.0,
    },
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "attention_hidden_size": 128, "attention_head_dim": 32, "n_mamba_heads": 2,
        "layers_block_type": [*["linear_attention"] * 2, "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 5,
    },
    "zamba2": {
        "attention_hidden_size": 2 * WIDTH, "attention_head_dim": 32, "mamba_headdim": 16,
        "adapter_rank": 8,
    },
}  # fmt: skip


def text_types() -> list[str]:
    """Model types whose causal class takes tokens alone: decoders of text, not towers or pairs."""
    found = []
    for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        config = _default(name)
        if config and config.get_text_config(decoder=True) is config:
            found += [] if config.is_encoder_decoder else [name]
    return sorted(found)


def _default(name: str) -> Any:
    try:
        return CONFIG_MAPPING[name]()
    except Exception:  # a default config that its own class refuses
        return None


def pair_types() -> list[str]:
    """Model types of an encoder and a decoder of text."""
    configs = {name: _default(name) for name in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES}
    return sorted(n for n, config in configs.items() if config and config.is_encoder_decoder)


def reads_pairs(config: Any) -> bool:
    """Tell whether the class of a config reads a source beside its tokens."""
    named = config.model_type in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    return named and bool(config.is_encoder_decoder)


def reads_images(config: Any) -> bool:
    """Tell whether the config is of a class that reads an image beside its tokens, whole."""
    return config.model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and hasattr(
        config, "vision_config"
    )


def auto_class(config: Any) -> Any:
    """Return the class of the library that builds the model of a config."""
    pairs = reads_pairs(config)
    if reads_images(config):
        return transformers.AutoModelForImageTextToText
    return transformers.AutoModelForSeq2SeqLM if pairs else transformers.AutoModelForCausalLM


def tiny_config(name: str) -> Any:
    """The tiny config of a model type, dropout 0; with its images behind their prefix.

    Raises whatever the library raises where it refuses the sizes.
    """
    from models_images import PREFIX, tiny_image_config

    if name.startswith(PREFIX):
        return tiny_image_config(name.removeprefix(PREFIX))
    kind = CONFIG_MAPPING[name]
    fields = kind().to_dict()
    config = kind(**given_fields(fields) | OWN.get(name, {}))
    return _as_decoder(config, fields)


def with_options(name: str, seed: int) -> tuple[Any, dict[str, Any]]:
    """The tiny config of a model type with random options, and the fields that they change.

    Raises whatever the library raises where it refuses them together.
    """
    config = tiny_config(name)
    changed = random_options(config.to_dict(), seed, name)
    kept = {k: v for k, v in config.to_dict().items() if k not in _OF_THE_LIBRARY}
    return _as_decoder(CONFIG_MAPPING[name](**kept | changed), kept), changed


def _as_decoder(config: Any, fields: dict[str, Any]) -> Any:
    for key in ("is_decoder", "use_cache"):
        if key in fields:
            setattr(config, key, key == "is_decoder" and not reads_pairs(config))
    return config


def given_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The small fields of a config, those of configs within it among them."""
    given: dict[str, Any] = {k: small for k, v in fields.items() if (small := _small(k, v))}
    given |= {key: given[other] for key, other in _ALIKE if _equal(fields, key, other, given)}
    given |= _layers(fields)
    given |= {key: 0.0 for key, value in fields.items() if _drops(key, value)}
    given |= {key: 0 for key, value in fields.items() if _past(key, value)}
    inner = {k: v for k, v in fields.items() if isinstance(v, dict) and v.get("model_type")}
    return given | {key: value | given_fields(value) for key, value in inner.items()}


def _equal(fields: dict[str, Any], key: str, other: str, given: dict[str, Any]) -> bool:
    return key in fields and other in given and fields[key] == fields[other]


def _layers(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a few layers, among which is each kind that the per-layer lists of a config say."""
    depth = next((key for key in _DEPTHS if type(fields.get(key)) is int), None)
    lists = {
        key: value
        for key, value in fields.items()
        if depth and isinstance(value, list) and len(value) == fields[depth] > 1
    }
    if not lists:
        return {}
    kinds = list(zip(*(map(str, value) for value in lists.values()), strict=True))
    chosen = sorted({kind: at for at, kind in reversed(list(enumerate(kinds)))}.values())
    chosen = (chosen if len(chosen) > 1 else [0, 1])[:_MOST_LAYERS]
    assert depth is not None
    cut = {key: [value[at] for at in chosen] for key, value in lists.items()}
    return {depth: len(chosen), **cut}


def _small(key: str, value: Any) -> int | None:
    if type(value) is not int:
        return None
    for pattern, size in _SIZES:
        if re.fullmatch(pattern, key):
            return size if value > size else None
    return None


def _past(key: str, value: Any) -> bool:
    """Whether a field is the id of a token past the small vocabulary."""
    return key.endswith("token_id") and type(value) is int and value >= VOCAB


def _drops(key: str, value: Any) -> bool:
    return "drop" in key and type(value) in (int, float) and value > 0


def parameters(config: Any) -> int:
    """How many parameters the class of a config has; nothing is allocated."""
    import torch

    with torch.device("meta"):
        model = auto_class(config).from_config(config)
    return sum(p.numel() for p in model.parameters())
