"""Small configs of a model with parts: a text model, and a tower that reads images.

A twin's tower has fewer layers and narrower ones, as its text model has. First its images have few
patches; where what a class does with them depends on their number, as windows do, they stay.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

_PATCHES = 4  # of a side of an image
_HEADS = ("num_attention_heads", "num_heads")
_TOKENS = "mm_tokens_per_image"  # features that the patches of an image are pooled to
_SECTIONS = "mrope_section"  # of half a head, one for each axis of positions
_OF_IMAGE = ("image_token_id", "image_token_index")


def parts_of(config: Any) -> dict[str, Any]:
    """Return the configs of the parts of a model that reads images, by name; {} of another."""
    own = vars(config) if hasattr(config, "vision_config") else {}
    return {name: part for name, part in own.items() if hasattr(part, "to_dict")}


def text_of(config: Any) -> Any:
    """Return the config of the text part; a config without parts is one."""
    return config.get_text_config(decoder=True) if parts_of(config) else config


def with_towers(config: Any, text: Any, reduced: Callable[[Any], Any]) -> Iterator[Any]:
    """Yield small configs of all parts. text: of the text part. reduced: makes one of a tower."""
    for few in (True, False):
        small, whole = copy.deepcopy(config), text_of(config)
        scale = 1.0
        for name, part in parts_of(config).items():
            if part is whole:
                setattr(small, name, text)
                continue
            tower = _tower(part, reduced(part), whole.hidden_size, text.hidden_size)
            side = _patches(part)
            if few and side > _PATCHES:
                tower.image_size, scale = part.patch_size * _PATCHES, _PATCHES / side
            setattr(small, name, tower)
        if hasattr(config, _TOKENS):
            setattr(small, _TOKENS, max(1, round(getattr(config, _TOKENS) * scale**2)))
        _name_tokens(small, text)
        _cut_sections(text)
        yield small
        if scale == 1.0:
            return


def _tower(part: Any, small: Any, whole: int, width: int) -> Any:
    """Fit a tower that was made small to the width of the text. whole: the text's own width."""
    for key, value in part.to_dict().items():
        if value == whole and key.endswith("hidden_size") and key != "hidden_size":
            setattr(small, key, width)
        elif key.endswith("_indexes"):  # of layers of a kind of their own
            layers = next(getattr(small, n) for n in ("depth", "num_hidden_layers"))
            setattr(small, key, [n for n in value if n < layers] or [layers - 1])
        elif key in _HEADS and small.hidden_size % value:
            setattr(small, key, 2)
    return small


def _patches(config: Any) -> int:
    """Return how many patches of an image lie side by side, 0 where no two numbers say so."""
    size, patch = (getattr(config, name, None) for name in ("image_size", "patch_size"))
    return size // patch if type(size) is type(patch) is int and size % patch == 0 else 0


def _name_tokens(small: Any, text: Any) -> None:
    """Let the tokens that a config names be in the vocabulary, that of an image by itself."""
    for key in vars(small):
        if key in _OF_IMAGE:
            setattr(small, key, text.vocab_size - 1)
        elif key.endswith(("_token_id", "_token_index")):
            setattr(small, key, text.vocab_size - 2)


def _cut_sections(text: Any) -> None:
    """Let the sections of a head make up half of it."""
    rope = getattr(text, "rope_parameters", None) or {}
    if _SECTIONS in rope:
        head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        total = 2 * sum(rope[_SECTIONS])
        text.rope_parameters = {**rope, _SECTIONS: [n * head // total for n in rope[_SECTIONS]]}
