"""From what a user writes to a model that can be built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from .config import DecoderConfig
from .decoder import Decoder
from .errors import ModelError, nearest
from .presets import PRESETS


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A named model, not built yet.

    vocab_size: tokens are 0 .. vocab_size - 1. max_seq: longest sequence, None if unbounded.
    build: makes the module in the current default dtype and device; its forward takes tokens,
    int64 [B, S], and returns logits [B, S, vocab_size] or an object that has them as `.logits`.
    """

    name: str
    vocab_size: int
    max_seq: int | None
    build: Callable[[], nn.Module]


def load_model(spec: str) -> ModelSource:
    """The model a spec names: a preset.

    Raises ModelError where the spec names none.
    """
    if spec not in PRESETS:
        raise ModelError(f"unknown model {spec!r}; {nearest(spec, PRESETS)}")
    return from_config(spec, PRESETS[spec])


def from_config(name: str, config: DecoderConfig) -> ModelSource:
    """The source of one dense decoder."""
    return ModelSource(name, config.vocab, config.max_seq, partial(Decoder, config))
