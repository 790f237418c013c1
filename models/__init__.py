"""Plain `nn.Module` decoders, presets, and the way in for other people's models."""

from .attention import AttentionCore
from .config import DecoderConfig
from .decoder import Decoder
from .errors import ModelError
from .load import load_model, rebuild_model
from .presets import PRESETS
from .source import ModelSource

__all__ = [
    "PRESETS",
    "AttentionCore",
    "Decoder",
    "DecoderConfig",
    "ModelError",
    "ModelSource",
    "load_model",
    "rebuild_model",
]
