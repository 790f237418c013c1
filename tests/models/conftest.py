"""Stock transformers models of the shape of a DecoderConfig, with the same weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import transformers

from meshwright.models import PRESETS
from meshwright.models.decoder import Decoder
from meshwright.models.stock import stock_config as config_of
from meshwright.models.stock import stock_tensors


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def stock_config() -> Callable[[str], transformers.PreTrainedConfig]:
    return lambda family: config_of(PRESETS[f"tiny-{family}"])


@pytest.fixture
def stock_twin() -> Callable[[str, Decoder], torch.nn.Module]:
    return _stock_twin


def _stock_twin(family: str, model: Decoder) -> torch.nn.Module:
    """The library's eager model with the same weights, in the same dtype."""
    config = config_of(PRESETS[f"tiny-{family}"])
    twin = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=model.embed.weight.dtype
    )
    state = model.state_dict()
    weights = {}
    for item in stock_tensors(model.config, list(state)):
        whole = torch.cat([state[part] for part in item.parts])
        weights[item.name] = whole.T if item.transposed else whole
    twin.load_state_dict(weights)
    return twin
