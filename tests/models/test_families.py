"""Every family computes what the stock transformers class computes, and can be traced."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim, export

from meshwright.models import PRESETS, load_model
from meshwright.models.attention import AttentionCore
from meshwright.models.decoder import Decoder

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2")


def _scrambled(family: str, dtype: torch.dtype) -> Decoder:
    """The preset tiny-<family> with every parameter far from its start, norms and biases too."""
    model = Decoder(PRESETS[f"tiny-{family}"]).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_stock(family, stock_twin):
    model = _scrambled(family, torch.float32)
    tokens = torch.randint(0, 256, (2, 24))
    torch.testing.assert_close(
        model(tokens), stock_twin(family, model)(tokens).logits, rtol=1e-4, atol=1e-4
    )


def test_equals_stock_in_float64(stock_twin):
    # Of the stock classes only GPT-2's stays in float64 from end to end.
    model = _scrambled("gpt2", torch.float64)
    tokens = torch.randint(0, 256, (2, 24))
    expected = stock_twin("gpt2", model)(tokens).logits
    torch.testing.assert_close(model(tokens), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_equal_stock(family, stock_twin):
    model = _scrambled(family, torch.float32)
    twin = stock_twin(family, model)
    tokens = torch.randint(0, 256, (2, 24))
    model(tokens).square().mean().backward()
    twin(tokens).logits.square().mean().backward()
    expected = twin.get_input_embeddings().weight.grad
    torch.testing.assert_close(model.embed.weight.grad, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_exports_with_symbolic_batch_and_sequence(family):
    model = _scrambled(family, torch.float64)
    dims = {0: Dim("B", min=1), 1: Dim("S", min=1)}
    program = export(
        model,
        (torch.randint(0, 256, (3, 11)),),
        dynamic_shapes=(dims,),
        prefer_deferred_runtime_asserts_over_guards=True,  # as capture exports
    )
    ranges = program.range_constraints.values()
    assert sorted(int(bounds.lower) for bounds in ranges) == [1, 1]
    assert all(bounds.upper > 10**9 for bounds in ranges)
    narrow = [n for n in program.graph.nodes if _dtype(n) in (torch.float32, torch.bfloat16)]
    assert not narrow
    for shape in ((1, 1), (1, 9), (5, 1), (2, 30)):
        tokens = torch.randint(0, 256, shape)
        torch.testing.assert_close(program.module()(tokens), model(tokens))


def _dtype(node: torch.fx.Node) -> torch.dtype | None:
    return getattr(node.meta.get("val"), "dtype", None)


@pytest.mark.parametrize("family", FAMILIES)
def test_computes_in_the_parameters_dtype(family):
    wide = _scrambled(family, torch.float64)
    tokens = torch.randint(0, 256, (1, 16))
    expected = wide(tokens)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.3)):
        logits = wide.to(dtype)(tokens)
        assert logits.dtype is dtype
        scale = expected.abs().max().item()
        assert (logits.double() - expected).abs().max().item() < tolerance * scale


def test_a_window_hides_what_is_older():
    core = AttentionCore(scale=1.0, window=3).double()
    q, k, v = (torch.randn(1, 2, 10, 4, dtype=torch.float64) for _ in range(3))
    out = core(q, k, v)
    changed = k.clone()
    changed[:, :, 4] += 1.0
    moved = (core(q, changed, v) - out).abs().amax((0, 1, 3)) > 0
    assert moved.nonzero().flatten().tolist() == [4, 5, 6]


def test_parameters_on_meta_beside_real_tables():
    model = _scrambled("gemma3", torch.float32)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(parameter.to("meta")))
    assert model.rope.inv_freq.device.type == "cpu"
    assert model(torch.zeros(2, 5, dtype=torch.int64, device="meta")).shape == (2, 5, 256)


def test_rope_tables_survive_a_move_of_the_model():
    reference = load_model("tiny-llama").build()
    with torch.device("meta"):
        moved = load_model("tiny-llama").build()
    moved = moved.to_empty(device="cpu").to(torch.bfloat16).to(torch.float32)
    moved.load_state_dict(reference.state_dict())
    tokens = torch.randint(0, 256, (1, 12))
    torch.testing.assert_close(moved(tokens), reference(tokens), rtol=0, atol=0)
