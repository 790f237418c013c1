"""Small twins: models of the same make as a large one, with small sizes and few layers.

Of a user's own module nothing says the sizes: its twins have fewer children in its lists.

A twin has the ops, wiring and switches of its model; whoever takes it in the model's place
compares the two captures first.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from .config import DecoderConfig
from .decoder import Decoder
from .part_twins import parts_of, text_of, with_towers
from .source import ModelSource

_HEAD, _VOCAB, _WINDOW, _POSITIONS = 16, 96, 4, 64

# Fields of a Hugging Face config that a common factor does not divide: depths and lengths.
_DEPTHS = (
    *("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    *("num_decoder_layers", "encoder_layers", "decoder_layers", "depth"),
)
_LENGTHS = ("max_encoder_position_embeddings", "max_decoder_position_embeddings")
_IMAGES = ("image_size", "patch_size")
_KEPT = (
    *(*_DEPTHS, *_LENGTHS, *_IMAGES),
    *("max_position_embeddings", "n_positions", "n_ctx", "chunk_size"),
)
_FACTORS = (64, 32, 16, 8, 4, 2)
_CHILDREN = (2, 3, 4)  # kept of a list of the user's own modules
_SMALLEST = 32  # integers below it are counts and choices, not widths


def twins(source: ModelSource) -> Iterator[ModelSource]:
    """Yield small twins of a model, the smallest first; the sizes of a user's own module stay."""
    if source.config is not None:
        yield from _decoder_twins(source, source.config)
    elif source.hf_config is not None:
        yield from _stock_twins(source, source.hf_config)
    else:
        for count in _CHILDREN:
            yield replace(source, build=partial(_shortened, source.build, count))


def _shortened(build: Callable[[], nn.Module], count: int) -> nn.Module:
    """Build a module and keep the first `count` children of each of its lists."""
    module = build()
    for child in module.modules():
        if isinstance(child, nn.ModuleList):
            del child[count:]
    return module


def _decoder_twins(source: ModelSource, config: DecoderConfig) -> Iterator[ModelSource]:
    groups = config.heads // config.key_heads
    kv_heads = 2 if config.key_heads > 1 else 1
    heads = kv_heads * min(groups, 2)
    for layers in _depths(config.layers, len(config.window_pattern)):
        small = replace(
            config,
            layers=layers,
            heads=heads,
            kv_heads=None if config.kv_heads is None else kv_heads,
            head_dim=None if config.head_dim is None else _HEAD,
            dim=heads * _HEAD,
            ffn=4 * _HEAD,
            vocab=_VOCAB,
            window=config.window and _WINDOW,
            max_seq=config.max_seq and min(config.max_seq, _POSITIONS),
        )
        yield ModelSource(source.name, small.vocab, small.max_seq, partial(Decoder, small), small)


def _depths(layers: int, period: int) -> list[int]:
    """Numbers of layers, among which one has every kind of layer after every other."""
    wanted = (period + 1, 2 * period, 2 * period + 1, 4 * period)
    return sorted({min(layers, n) for n in wanted})


def _stock_twins(source: ModelSource, config: Any) -> Iterator[ModelSource]:
    text = text_of(config)
    kinds = list(zip(*(map(str, v) for v in _by_layer(text).values()), strict=True))
    layers = next((getattr(text, k) for k in _DEPTHS if hasattr(text, k)), 1)
    period = next((n + 1 for n in range(len(kinds)) if set(kinds[: n + 1]) == set(kinds)), 1)
    for depth in _depths(layers, period):
        for small in _small_configs(config, depth):
            vocab = text_of(small).vocab_size
            yield replace(
                source,
                vocab_size=vocab,
                build=partial(source.rebuild, small) if source.rebuild else source.build,
                plain=_plain_of(source, small),
                hf_config=small,
            )


def _small_configs(config: Any, depth: int) -> Iterator[Any]:
    """Yield configs of few heads, then of heads that a factor divides as it does widths."""
    for few_heads in (True, False):
        for factor in _FACTORS:
            small = _reduced(text_of(config), factor, depth)
            if few_heads and not _with_few_heads(small, text_of(config)):
                continue
            if parts_of(config):
                # Features may be those before the last layer of a tower.
                reduced = partial(_reduced, factor=factor, depth=depth + 1)
                yield from with_towers(config, small, reduced)
            else:
                yield small


def _with_few_heads(small: Any, config: Any) -> bool:
    """Give a config two heads of keys and at most two of queries for each; return whether the
    fields that say so are there. Where no field says the size of a head, it becomes _HEAD."""
    heads = getattr(config, "num_attention_heads", None)
    keys = getattr(config, "num_key_value_heads", None)
    if type(heads) is not int or type(keys) is not int or heads % keys:
        return False
    small.num_key_value_heads = min(keys, 2)
    small.num_attention_heads = small.num_key_value_heads * min(heads // keys, 2)
    if type(getattr(config, "head_dim", None)) is not int:
        small.hidden_size = small.num_attention_heads * _HEAD
    elif config.head_dim >= _SMALLEST and not hasattr(config, "qk_rope_head_dim"):
        small.head_dim = _HEAD
    return True


def _plain_of(source: ModelSource, small: Any) -> Callable[[], nn.Module] | None:
    from .huggingface import stock_source

    return stock_source(source.name, small).plain if source.plain else None


def _reduced(config: Any, factor: int, depth: int) -> Any:
    small = copy.deepcopy(config)
    for key, value in config.to_dict().items():
        if key.endswith("token_id"):
            # Rows of padding have no gradient: an embedding that has such a row keeps one.
            kept = value is not None and key in ("pad_token_id", "decoder_start_token_id")
            setattr(small, key, 0 if kept else None)
        elif key in _DEPTHS:
            setattr(small, key, depth)
        elif key == "first_k_dense_replace":  # layers before the first with experts
            setattr(small, key, min(value or 0, 1))
        elif "expert" in key and type(value) is int and value >= _SMALLEST and "size" not in key:
            setattr(small, key, min(value, _experts(config)))
        elif type(value) is int and value >= _SMALLEST and key not in _KEPT:
            setattr(small, key, value // factor if value % factor == 0 else value)
    _cut_by_layer(small, config, depth)
    return small


def _cut_by_layer(small: Any, config: Any, depth: int) -> None:
    for key, value in _by_layer(config).items():
        with suppress(AttributeError):  # what the config derives from other fields
            setattr(small, key, value[:depth])


def _by_layer(config: Any) -> dict[str, list[Any]]:
    """Return the fields of a config that list something of every layer."""
    layers = next((getattr(config, key) for key in _DEPTHS if hasattr(config, key)), 0)
    listed = {"layer_types": getattr(config, "layer_types", None), **config.to_dict()}
    return {k: v for k, v in listed.items() if isinstance(v, list) and len(v) == layers > 1}


def _experts(config: Any) -> int:
    """Return how many experts a twin has: twice what a token chooses of them, which leaves two in a
    group where they are chosen by group."""
    chosen = [getattr(config, key, None) for key in ("num_experts_per_tok", "top_k", "moe_k")]
    return 2 * max([2, *(n for n in chosen if type(n) is int)])
