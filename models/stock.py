"""Our decoders in the words of `transformers`: the stock class's config, and where weights lie.

A stock tensor is our tensors, concatenated along dim 0 (GPT-2's fused q, k, v) and transposed where
the library's layer stores [in, out] (GPT-2's Conv1D). Both ways are then the same table.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .config import DecoderConfig
from .errors import ModelError
from .hf_extra import transformers_for
from .source import ModelSource

_PARTS = {
    "embed": "embed_tokens",
    "attention_norm": "input_layernorm",
    "attention_post_norm": "post_attention_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
    "attention": "self_attn",
    "ffn": "mlp",
    **{name: f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")},
}
_GPT2_HEADS = {"embed": "wte", "position": "wpe", "norm": "ln_f"}
_GPT2_PARTS = {
    "attention_norm": "ln_1",
    "attention.o": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn.up": "mlp.c_fc",
    "ffn.down": "mlp.c_proj",
}


@dataclass(frozen=True)
class StockTensor:
    """name: in the library. parts: ours, concatenated along dim 0; transposed: then turned."""

    name: str
    parts: tuple[str, ...]
    transposed: bool = False


def stock_family(config: DecoderConfig) -> str:
    """The library's model type that computes exactly this config.

    Raises ModelError where none does.
    """
    if config.positions == "learned":
        return "gpt2"
    if config.norm == "rms_plus_one":
        return "gemma3_text" if config.qk_norm else "gemma2"
    if config.norm != "rms" or not config.gated or config.activation != "silu":
        raise _no_stock_class(config)
    if config.qk_norm:
        return "qwen3"
    if config.bias == "qkv":
        return "qwen2"
    return "mistral" if config.window is not None else "llama"


def _no_stock_class(config: DecoderConfig) -> ModelError:
    return ModelError(
        f"no stock class has norm={config.norm}, activation={config.activation}, "
        f"gated={config.gated} with rotary positions; its weights stay in our own names"
    )


def stock_config(config: DecoderConfig) -> Any:
    """The `transformers` config of the stock class; needs the `hf` extra."""
    transformers = transformers_for("a Hugging Face config")
    family = stock_family(config)
    if family == "gpt2":
        return _gpt2_config(config)
    values = {**_shared(config), **_own(family, config)}
    return transformers.AutoConfig.for_model(family, **values)


def _shared(config: DecoderConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab,
        "hidden_size": config.dim,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.key_heads,
        "head_dim": config.head_size,
        "max_position_embeddings": config.max_seq or 2048,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _own(family: str, config: DecoderConfig) -> dict[str, Any]:
    rope = _rope(config)
    if family == "mistral":
        return {"rope_parameters": rope, "sliding_window": config.window}
    if not family.startswith("gemma"):
        return {"rope_parameters": rope}
    if family == "gemma3_text":
        near = {"rope_type": "default", "rope_theta": config.rope_local_theta or config.rope_theta}
        rope = {"full_attention": rope, "sliding_attention": near}
    return {"rope_parameters": rope, **_gemma(config)}


def _rope(config: DecoderConfig) -> dict[str, Any]:
    plain: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling == "none":
        return plain
    scaled = {**plain, "rope_type": config.rope_scaling, "factor": config.rope_factor}
    if config.rope_scaling == "linear":
        return scaled
    return {
        **scaled,
        "low_freq_factor": config.rope_low_freq_factor,
        "high_freq_factor": config.rope_high_freq_factor,
        "original_max_position_embeddings": config.rope_original_seq,
    }


def _gemma(config: DecoderConfig) -> dict[str, Any]:
    kinds = ["full_attention", "sliding_attention"]
    windowed = [config.window_of(layer) is not None for layer in range(config.layers)]
    return {
        "query_pre_attn_scalar": round(config.score_scale**-2),
        "sliding_window": config.window,
        "layer_types": [kinds[yes] for yes in windowed],
        "attn_logit_softcapping": config.attention_softcap,
        "final_logit_softcapping": config.logit_softcap,
    }


def _gpt2_config(config: DecoderConfig) -> Any:
    return transformers_for("a Hugging Face config").GPT2Config(
        vocab_size=config.vocab,
        n_embd=config.dim,
        n_layer=config.layers,
        n_head=config.heads,
        n_inner=config.ffn,
        n_positions=config.max_seq,
        layer_norm_epsilon=config.norm_eps,
        tie_word_embeddings=config.tied,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )


def stock_tensors(config: DecoderConfig, names: list[str]) -> tuple[StockTensor, ...]:
    """Every stock tensor of a decoder whose parameters are `names`; a tied head is stored once."""
    family = stock_family(config)
    if family == "gpt2":
        return tuple(_gpt2_tensors(names))
    before_ffn = "pre_feedforward_layernorm" if config.post_norms else "post_attention_layernorm"
    parts = {**_PARTS, "ffn_norm": before_ffn}
    found = []
    for name in names:
        stock = ".".join(parts.get(part, part) for part in name.split("."))
        found.append(
            StockTensor(stock if name.startswith("lm_head") else f"model.{stock}", (name,))
        )
    return tuple(found)


def _gpt2_tensors(names: list[str]) -> Iterator[StockTensor]:
    for name in names:
        head, _, rest = name.partition(".")
        if head == "lm_head":
            yield StockTensor(name, (name,))
        elif head in _GPT2_HEADS:
            yield StockTensor(f"transformer.{_GPT2_HEADS[head]}.{rest}", (name,))
        else:
            layer, _, inner = rest.partition(".")
            yield from _gpt2_layer(layer, inner, name)


def _gpt2_layer(layer: str, rest: str, name: str) -> Iterator[StockTensor]:
    """The library's Conv1D weights are [in, out], and q, k, v are one."""
    part, kind = rest.rsplit(".", 1)
    matrix = kind == "weight" and part in (*_GPT2_PARTS, "attention.q") and "norm" not in part
    if part in ("attention.k", "attention.v"):
        return
    if part == "attention.q":
        parts = tuple(f"layers.{layer}.attention.{letter}.{kind}" for letter in "qkv")
        yield StockTensor(f"transformer.h.{layer}.attn.c_attn.{kind}", parts, matrix)
        return
    yield StockTensor(f"transformer.h.{layer}.{_GPT2_PARTS[part]}.{kind}", (name,), matrix)


def targets(source: ModelSource) -> tuple[StockTensor, ...]:
    """Stock tensors of a model's parameters; those of the user's own code keep their names.

    Raises ModelError for a decoder that has no stock class.
    """
    names = list(param_shapes(source))
    if source.config is not None:
        return stock_tensors(source.config, names)
    prefix = "hf." if source.kind == "hf" else ""
    return tuple(StockTensor(name.removeprefix(prefix), (name,)) for name in names)


def param_shapes(source: ModelSource) -> dict[str, tuple[int, ...]]:
    """Shapes of a model's parameters by name, a tied one once; no memory is taken."""
    with torch.device("meta"):
        module = source.build()
    return {name: tuple(param.shape) for name, param in module.named_parameters()}


def config_to_write(source: ModelSource) -> Any:
    """Return the config of a model's stock class; None where a folder has it, and of user's code.

    Raises ModelError where transformers is not installed.
    """
    if source.kind == "py" or source.folder is not None:
        return None
    own = source.config
    config = copy.deepcopy(source.hf_config) if own is None else stock_config(own)
    config.architectures = [_class_of(config)]
    return config


def write_stock_config(source: ModelSource, config: Any, out: Path) -> list[str]:
    """config.json, and a Hugging Face folder's tokenizer, beside exported weights; their names.

    config: of `config_to_write`. The user's own code has neither.
    """
    if source.kind == "py":
        return []
    if source.folder is None:
        config.save_pretrained(out)
        return ["config.json"]
    kept = [p for p in source.folder.iterdir() if p.suffix in (".json", ".txt", ".model")]
    kept = [p for p in kept if ".index." not in p.name]
    for path in kept:
        shutil.copy2(path, out / path.name)
    return sorted(p.name for p in kept)


def say_dtype(path: Path, dtype: str) -> None:
    """Name the dtype of the weights in a config.json, in its parts too where they name one."""
    said = json.loads(path.read_text(encoding="utf-8"))
    parts = [part for part in said.values() if isinstance(part, dict)]
    for part in (said, *parts):
        known = [key for key in ("dtype", "torch_dtype") if key in part]
        part |= dict.fromkeys(known or (["dtype"] if part is said else []), dtype)
    path.write_text(f"{json.dumps(said, indent=2)}\n", encoding="utf-8")


def _class_of(config: Any) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__
