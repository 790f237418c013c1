"""A model that can be built: what every way of naming one ends in."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import DecoderConfig

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A named model, not built yet.

    vocab_size: tokens are 0 .. vocab_size - 1. max_seq: longest sequence, None if not stated.
    build: makes the module in the current default dtype and device; its forward takes tokens,
    int64 [B, S], and returns logits [B, S, vocab_size] or an object that has them as `.logits`.
    config: of our own decoders. folder: of Hugging Face models, as their config hf_config, and
    rebuild, which makes the module of another config, and plain, which makes it as the library
    does, with the parameters of `build` under the same names. opened: files that a factory of the
    user's own read.
    """

    name: str
    vocab_size: int
    max_seq: int | None
    build: Callable[[], nn.Module]
    config: DecoderConfig | None = None
    folder: Path | None = None
    hf_config: Any = None
    rebuild: Callable[[Any], nn.Module] | None = None
    plain: Callable[[], nn.Module] | None = None
    opened: frozenset[str] | None = None

    @property
    def kind(self) -> str:
        """Return "decoder", "hf" or "py": of our own, a stock class, or the user's own code."""
        if self.config is not None:
            return "decoder"
        return "py" if self.hf_config is None else "hf"

    @property
    def config_fields(self) -> dict[str, Any]:
        """Return the whole config as JSON has it; {} where only the user's own code says it."""
        if self.config is not None:
            return json.loads(json.dumps(asdict(self.config)))
        if self.hf_config is None:
            return {}
        return json.loads(self.hf_config.to_json_string(use_diff=False))

    @property
    def determined_by(self) -> str:
        """Return text that determines the module; "" where nothing says all that does."""
        if self.config is not None:
            return repr(self.config)
        if self.opened is not None:
            from .own_files import determined_by

            return determined_by(self.name, set(self.opened))
        if self.hf_config is None:
            return ""
        import transformers

        return f"{transformers.__version__} {self.hf_config.to_json_string()}"
