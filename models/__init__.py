"""Plain `nn.Module` decoders, presets, and the way in for other people's models.

What is named here needs no torch: a spec that names no model is refused before torch is imported.
"""

from .config import DecoderConfig
from .errors import ModelError
from .load import load_model, rebuild_model
from .presets import PRESETS
from .source import ModelSource

__all__ = [
    "PRESETS",
    "DecoderConfig",
    "ModelError",
    "ModelSource",
    "load_model",
    "rebuild_model",
]
