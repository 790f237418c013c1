"""Experts that lie in a folder one by one, as the stacked matrices that a class has of them.

Hugging Face folders keep `experts.3.gate_proj.weight` and `experts.3.up_proj.weight` [I, H] (or w1
and w3), of which a class of transformers has one parameter `experts.gate_up_proj` [E, 2 I, H], and
`experts.3.down_proj.weight` (or w2) [H, I] of `experts.down_proj` [E, H, I].
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..engine.boxes import Box
from .manifest import Stored

_ONE = re.compile(r"(.*experts)\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.weight")
_WORDS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
# Words of stored names, and those of the class in their place.
_OTHERS = (
    (".block_sparse_moe.", ".mlp."),
    ("backbone.", "model."),
    ("language_model.model.", "model.language_model."),
    ("language_model.lm_head.", "lm_head."),
    ("language_model.model.", "model."),  # of a model with parts, whose text part alone is trained
    ("model.language_model.", "model."),
    *((f"model.{n}.", f"model.language_model.{n}.") for n in ("embed_tokens", "layers", "norm")),
    (".vision_model.", "."),
)


def as_named(stored: Mapping[str, Stored]) -> dict[str, list[Stored]]:
    """Return what is stored by each name that a class may have for it; a name that is stored is
    that tensor."""
    plain = {name: [item] for name, item in stored.items()}
    moved = {name.replace(*words): [item] for words in _OTHERS for name, item in stored.items()}
    known = moved | plain
    return dict(_stacked({name: item for name, (item,) in known.items()})) | known


def _stacked(stored: Mapping[str, Stored]) -> Iterator[tuple[str, list[Stored]]]:
    """Yield the stacked matrices by name."""
    layers: dict[str, list[tuple[int, str, Stored]]] = defaultdict(list)
    for name, item in stored.items():
        if (found := _ONE.fullmatch(name)) and len(item.box.sizes) == 2:
            place, number, word = found.groups()
            layers[place].append((int(number), _WORDS.get(word, word), item))
    for place, experts in layers.items():
        gated = any(word == "gate_proj" for _, word, _ in experts)
        down = [_row(number, item, 0) for number, word, item in experts if word == "down_proj"]
        up = [
            _row(number, item, word == "up_proj" and gated)
            for number, word, item in experts
            if word != "down_proj"
        ]
        yield f"{place}.down_proj", down
        yield f"{place}.{'gate_up_proj' if gated else 'up_proj'}", up


def _row(number: int, item: Stored, half: int) -> Stored:
    """Return a matrix as a row of a stack. half: 1 for the second half of its first dim."""
    rows, columns = item.box.sizes
    box = Box((number, half * rows, 0), (1, rows, columns))
    return replace(item, box=box, stacked=True)
