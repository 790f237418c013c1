"""Adapters of languages as the class has them: of the rows of each language, gradients too."""

from pathlib import Path

import pytest
import torch
import transformers
from transformers.models.xmod import modeling_xmod

from meshwright.ir.capture.export import trace
from meshwright.models import load_model
from meshwright.models.hf_adapters import take_over_adapters
from meshwright.proof.prove import Subject, prove

NORMS = {
    "none": {"adapter_reuse_layer_norm": False},
    "shared": {"adapter_reuse_layer_norm": True, "ln_before_adapter": False},
    "own": {"adapter_layer_norm": True, "ln_before_adapter": True},
}


def _config(**options: object) -> transformers.XmodConfig:
    return transformers.XmodConfig(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=64, is_decoder=True, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, languages=["en_XX", "de_DE"], default_language="de_DE",
        **options,
    )  # fmt: skip


@pytest.mark.parametrize("norm", NORMS)
def test_each_row_takes_the_adapter_of_its_language(norm: str) -> None:
    """The third of the languages has no row: zeros are its gradient, not None."""
    layer = modeling_xmod.XmodOutput(_config(**NORMS[norm])).double()
    layer.adapter_modules["fr_FR"] = modeling_xmod.XmodAdapter(_config()).double()
    x, languages = torch.randn(3, 5, 16, dtype=torch.float64), torch.tensor([1.0, 0.0, 1.0])
    weights = torch.randn_like(x)

    def outcome() -> list[torch.Tensor]:
        leaf = x.clone().requires_grad_()
        y = layer.lang_adapter(languages, leaf * 1)
        used = [p for name, p in layer.named_parameters() if not name.startswith("dense")]
        grads = torch.autograd.grad((y * weights).sum(), [leaf, *used], allow_unused=True)
        return [y, *(torch.full((), -1.0) if g is None else g for g in grads)]

    expected = outcome()
    take_over_adapters(layer)
    for one, other in zip(outcome(), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_xmod_is_captured(tmp_path: Path) -> None:
    _config().save_pretrained(tmp_path)
    source = load_model(f"hf:{tmp_path}")
    assert source.plain
    traced = trace(source.build, "xmod", "f64", source.vocab_size)
    prove(Subject("xmod", source.plain, source.vocab_size, source.max_seq), traced)
