"""Small random models of every family: our own decoder, and the stock class of transformers."""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import dropped_model
import odd_model
import torch
import transformers
from equivalence.cases import DROPPED, ODD, ModelDraw
from torch import nn

from meshwright.models import PRESETS, DecoderConfig, load_model
from meshwright.models.decoder import Decoder
from meshwright.models.huggingface import HuggingFaceCausalLM

MAX_SEQ = 32
_CLASSES: dict[str, Callable[..., Any]] = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "gemma2": transformers.Gemma2Config,
    "gemma3": transformers.Gemma3TextConfig,
    "gpt2": transformers.GPT2Config,
}


@dataclass(frozen=True)
class DrawnModel:
    """build: what Meshwright captures. plain: what it is compared with."""

    name: str
    vocab: int
    build: Callable[[], nn.Module]
    plain: Callable[[], nn.Module]


def draw_model(draw: ModelDraw, folder: Path) -> DrawnModel:
    """The model of a draw; a stock one gets its config.json under `folder`."""
    if draw.family == ODD:
        return DrawnModel(ODD, odd_model.VOCAB, odd_model.Odd, odd_model.Odd)
    if draw.family == DROPPED:
        make = partial(dropped_model.Dropped, draw.variant)
        return DrawnModel(draw.name, dropped_model.VOCAB, make, make)
    config = random_config(draw)
    if not draw.stock:
        build = partial(Decoder, config)
        return DrawnModel(draw.name, config.vocab, build, build)
    path = folder / draw.name
    _CLASSES[draw.family](**_stock(draw.family, config)).save_pretrained(path)
    source = load_model(f"hf:{path}")
    return DrawnModel(draw.name, config.vocab, source.build, partial(_plain_stock, path))


def _plain_stock(path: Path) -> nn.Module:
    """The library's model with the library's own attention."""
    config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    model = transformers.AutoModelForCausalLM.from_config(
        copy.deepcopy(config), attn_implementation="eager", dtype=torch.get_default_dtype()
    )
    return HuggingFaceCausalLM(model)


def random_config(draw: ModelDraw) -> DecoderConfig:
    """Sizes that divide by 2, 3 and 4 in some draws and by none of them in others."""
    rng = random.Random(f"model/{draw.seed}/{draw.family}/{draw.stock}/{draw.variant}")
    heads = rng.choice((2, 3, 4, 4))
    head_dim = rng.choice((4, 6, 8))
    dim = rng.choice((12, 15, 16, 24))
    if draw.stock or draw.family == "gpt2":
        # The library wants whole heads in the width, and Qwen2 and GPT-2 of just that size.
        dim = heads * (head_dim if draw.family in ("gpt2", "qwen2") else rng.choice((4, 5, 8)))
    config = replace(
        PRESETS[f"tiny-{draw.family}"],
        dim=dim,
        layers=rng.choice((2, 2, 3)),
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        ffn=rng.choice((21, 24, 32, 36)),
        vocab=rng.choice((32, 48, 64, 97)),
        max_seq=MAX_SEQ,
        tied=rng.random() < 0.5,
        init_std=0.1,
    )
    if draw.family == "gpt2":
        return config
    config = replace(config, kv_heads=rng.choice([n for n in (1, 2, 3, 4) if heads % n == 0]))
    return _special(config, rng)


def _special(config: DecoderConfig, rng: random.Random) -> DecoderConfig:
    """What the presets tie to their sizes."""
    if config.window is not None:
        config = replace(config, window=rng.choice((3, 4, 6)), window_pattern=(True, False))
    if config.norm == "rms_plus_one":
        scale = rng.choice((16, 25)) ** -0.5
        config = replace(config, embed_scale=config.dim**0.5, query_scale=scale)
    return config


def _stock(family: str, ours: DecoderConfig) -> dict[str, Any]:
    """The library's words for a config."""
    rates = _dropout(family, ours)
    both = rates | {
        "vocab_size": ours.vocab,
        "initializer_range": ours.init_std,
        "tie_word_embeddings": ours.tied,
        "bos_token_id": None,
        "eos_token_id": None,
        # Stock Gemma has a padding row, which learns nothing from the lookup.
        "pad_token_id": (None, 0, 1)[ours.ffn % 3],
    }
    if family == "gpt2":
        return {**both, **_stock_gpt2(ours)}
    shape = {
        "hidden_size": ours.dim,
        "intermediate_size": ours.ffn,
        "num_hidden_layers": ours.layers,
        "num_attention_heads": ours.heads,
        "num_key_value_heads": ours.key_heads,
        "head_dim": ours.head_size,
        "max_position_embeddings": MAX_SEQ,
    }
    if ours.window is not None:
        shape["sliding_window"] = ours.window
    return {**both, **shape, **_stock_gemma(family, ours)}


def _stock_gpt2(ours: DecoderConfig) -> dict[str, Any]:
    return {
        "n_embd": ours.dim,
        "n_layer": ours.layers,
        "n_head": ours.heads,
        "n_inner": ours.ffn,
        "n_positions": MAX_SEQ,
    }


def _dropout(family: str, ours: DecoderConfig) -> dict[str, float]:
    """A third of the configs drop some: GPT-2 in three places, the others weights of attention."""
    rng = random.Random(f"dropout/{ours}")
    names = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
    names = names if family == "gpt2" else ("attention_dropout",)
    some = rng.random() < 1 / 3
    return {name: rng.choice((0.1, 0.25)) * (some and rng.random() < 0.8) for name in names}


def _stock_gemma(family: str, ours: DecoderConfig) -> dict[str, Any]:
    if family not in ("gemma2", "gemma3"):
        return {}
    windowed = [ours.window_of(layer) is not None for layer in range(ours.layers)]
    return {
        "layer_types": [f"{'sliding' if yes else 'full'}_attention" for yes in windowed],
        "query_pre_attn_scalar": round(ours.score_scale**-2),
        "attn_logit_softcapping": ours.attention_softcap,
        "final_logit_softcapping": ours.logit_softcap,
    }
