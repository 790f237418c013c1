"""Presets have the sizes their names promise, and start from their family's distributions."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from meshwright.models import PRESETS, DecoderConfig, ModelError, load_model
from meshwright.models.decoder import Decoder

# Billions, three decimals: a published table of these very shapes, and the models' own cards.
PUBLISHED = {
    "llama-7b": 8.030,
    "llama-13b": 14.840,
    "llama-29b": 28.705,
    "llama-70b": 70.554,
    "llama-405b": 405.853,
    "llama-1b": 1.236,
    "qwen3-8b": 8.191,
    "gemma3-4b": 3.880,
    "gpt2": 0.124,
    "gpt-22b": 22.074,
    "gpt-175b": 174.616,
    "gpt-530b": 529.601,
    "gpt-1t": 1008.039,
    "tiny": 0.001,
    "tiny-2m": 0.002,
}


def _build(name: str, device: str) -> Decoder:
    with torch.device(device):
        return load_model(name).build()


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_count(name):
    count = sum(parameter.numel() for parameter in _build(name, "meta").parameters())
    assert round(count / 1e9, 3) == PUBLISHED[name]


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("tiny")])
def test_tiny_presets_divide_by_four(name):
    config = PRESETS[name]
    sizes = (config.dim, config.heads, config.key_heads, config.head_size, config.ffn)
    assert config.vocab == 256
    assert all(size % 4 == 0 for size in sizes)


@pytest.mark.parametrize("name", ("tiny-llama", "tiny-gemma3", "tiny-gpt2"))
def test_each_parameter_is_filled_once(name):
    filled: list[int] = []

    class Fills(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func._schema.name in ("aten::normal_", "aten::fill_", "aten::zero_"):
                filled.append(id(args[0]))
            return func(*args, **(kwargs or {}))

    with Fills():
        model = Decoder(PRESETS[name])
    kept = {id(parameter) for parameter in model.parameters()}
    assert sorted(key for key in filled if key in kept) == sorted(kept)


def test_start_of_gpt2():
    model = _build("tiny-gpt2", "cpu")
    assert model.lm_head.weight is model.embed.weight
    block = model.layers[0]
    assert block.ffn.up.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert block.ffn.down.weight.std().item() == pytest.approx(0.02 / math.sqrt(4), rel=0.1)
    assert not block.ffn.up.bias.any()
    assert (block.ffn_norm.weight == 1).all()


def test_build_follows_the_default_dtype():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        model = _build("tiny-qwen3", "cpu")
    finally:
        torch.set_default_dtype(before)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}


@pytest.mark.parametrize(
    ("change", "message"),
    (
        ({"heads": 6}, "dim = 64 is not a multiple of heads = 6"),
        ({"kv_heads": 3}, "heads = 4 is not a multiple of kv_heads = 3"),
        ({"norm": "rmsnorm"}, "nearest: rms"),
        ({"layers": 0}, "layers = 0"),
        ({"positions": "learned"}, "needs max_seq"),
        ({"head_dim": 7}, "RoPE needs an even one"),
        ({"window_pattern": ()}, "window_pattern is empty"),
    ),
)
def test_contradicting_fields_are_refused(change, message):
    fields = {"dim": 64, "layers": 2, "heads": 4, "ffn": 128, "vocab": 256, **change}
    with pytest.raises(ModelError, match=message):
        DecoderConfig(**fields)
