"""Stock models from a config.json keep their logits when their attention is handed over."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch._subclasses import FakeTensorMode
from torch.export import Dim, export

from meshwright.models import PRESETS, AttentionCore, ModelError, load_model

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2")


def _cores(model: torch.nn.Module) -> list[AttentionCore]:
    return [module for module in model.modules() if isinstance(module, AttentionCore)]


@pytest.fixture
def folder(tmp_path, stock_config):
    def write(family: str) -> str:
        stock_config(family).save_pretrained(tmp_path)
        return f"hf:{tmp_path}"

    return write


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_stock_eager(family, folder, stock_config):
    model = load_model(folder(family)).build()
    twin = transformers.AutoModelForCausalLM.from_config(
        stock_config(family), attn_implementation="eager", dtype=torch.float32
    )
    twin.load_state_dict(model.hf.state_dict())
    tokens = torch.randint(0, 256, (2, 24))
    torch.testing.assert_close(model(tokens), twin(tokens).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_cores_are_those_of_our_own_family(family, folder):
    ours = PRESETS[f"tiny-{family}"]
    cores = _cores(load_model(folder(family)).build())
    found = [(core.scale, core.window, core.softcap) for core in cores]
    assert found == [
        (ours.score_scale, ours.window_of(layer), ours.attention_softcap)
        for layer in range(ours.layers)
    ]


@pytest.mark.parametrize("family", ("llama", "gemma3"))
def test_exports_without_dense_masks(family, folder, monkeypatch):
    model = load_model(folder(family)).build()
    for core in _cores(model):
        monkeypatch.setattr(core, "forward", lambda q, k, v: q)
    dims = {0: Dim("B", min=1), 1: Dim("S", min=1)}
    program = export(model, (torch.randint(0, 256, (3, 11)),), dynamic_shapes=(dims,))
    targets = {str(node.target) for node in program.graph.nodes}
    assert not targets & {"aten.softmax.int", "aten.where.self", "aten.masked_fill.Scalar"}
    assert program.module()(torch.zeros(1, 1, dtype=torch.int64)).shape == (1, 1, 256)


def test_build_under_meta_and_fake(folder):
    source = load_model(folder("gemma2"))
    with torch.device("meta"):
        assert len(_cores(source.build())) == 4
    with FakeTensorMode():
        assert len(_cores(source.build())) == 4


@pytest.mark.parametrize("family", FAMILIES)
def test_a_padding_token_is_never_looked_for(family, tmp_path, stock_config):
    config = stock_config(family)
    config.pad_token_id = 0
    config.save_pretrained(tmp_path)
    assert _cores(load_model(f"hf:{tmp_path}").build())


def test_a_multimodal_config_gives_its_text_model(tmp_path, stock_config):
    whole = transformers.Gemma3Config(text_config=stock_config("gemma3").to_dict())
    whole.save_pretrained(tmp_path)
    assert (
        load_model(f"hf:{tmp_path}").build()(torch.zeros(1, 3, dtype=torch.int64)).shape[2] == 256
    )


def test_sinks_are_refused(tmp_path):
    transformers.GptOssConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=8,
        num_local_experts=4,
        pad_token_id=None,
    ).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="attention sinks are not built yet"):
        load_model(f"hf:{tmp_path}").build()


def test_experts_do_not_stand_in_the_way(tmp_path):
    transformers.Qwen3MoeConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
    ).save_pretrained(tmp_path)
    model = load_model(f"hf:{tmp_path}").build()
    assert [core.window for core in _cores(model)] == [None, None]
    assert model(torch.zeros(1, 5, dtype=torch.int64)).shape == (1, 5, 256)
