"""Stock models from a config.json keep their logits when their attention is handed over."""

from __future__ import annotations

import json
import sys

import pytest
import torch
import transformers
from torch._subclasses import FakeTensorMode
from torch.export import Dim, export
from transformers import masking_utils

from meshwright.models import PRESETS, ModelError, load_model
from meshwright.models.agreement import check_config
from meshwright.models.attention import AttentionCore
from meshwright.models.dense_attention import DenseCore
from meshwright.models.experts import ExpertCore
from meshwright.models.hf_masks import OtherMaskError, Visible, sees_all, visible_of
from meshwright.models.stock import config_to_write

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


def _same_logits(folder: str) -> torch.nn.Module:
    """The model of a folder, its logits compared with those of the class itself."""
    source = load_model(folder)
    model, plain = source.build(), source.plain()
    plain.load_state_dict(model.state_dict())
    tokens = torch.randint(0, 256, (2, 24))
    torch.testing.assert_close(model(tokens), plain(tokens), rtol=1e-4, atol=1e-5)
    return model


def test_sinks_windows_and_expert_biases_are_those_of_the_class(tmp_path):
    transformers.GptOssConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=5,
        num_local_experts=4,
        pad_token_id=None,
    ).save_pretrained(tmp_path)
    model = _same_logits(f"hf:{tmp_path}")
    assert len([m for m in model.modules() if isinstance(m, ExpertCore)]) == 2


def test_a_class_that_attends_by_itself_is_taken_as_it_is(tmp_path):
    transformers.FalconConfig(
        vocab_size=256,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=None,
    ).save_pretrained(tmp_path)
    assert not _cores(_same_logits(f"hf:{tmp_path}"))


def test_a_mask_that_is_no_window_is_a_tensor(tmp_path):
    transformers.DogeConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=None,
    ).save_pretrained(tmp_path)
    model = _same_logits(f"hf:{tmp_path}")
    assert len([m for m in model.modules() if isinstance(m, DenseCore)]) == 2


RULES = {
    "causal": (masking_utils.causal_mask_function, None, Visible()),
    "window": (masking_utils.sliding_window_causal_mask_function(6), 6, Visible(6)),
    "wide window": (masking_utils.sliding_window_causal_mask_function(4096), 4096, Visible(4096)),
}
OTHER_RULES = {
    "both ways": (masking_utils.bidirectional_mask_function, None),
    "another window than is said": (masking_utils.sliding_window_causal_mask_function(6), 7),
    "window of both sides": (masking_utils.sliding_window_bidirectional_mask_function(6), 6),
    "chunks": (masking_utils.chunked_causal_mask_function(6, torch.zeros(1, dtype=torch.int64)), 6),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_of_the_library_is_read(name):
    rule, reach, visible = RULES[name]
    assert visible_of(rule, reach) == visible


@pytest.mark.parametrize("name", OTHER_RULES)
def test_a_rule_that_is_no_window_is_none_of_ours(name):
    with pytest.raises(OtherMaskError):
        visible_of(*OTHER_RULES[name])


def test_a_wide_window_that_nobody_names_is_no_rule():
    with pytest.raises(OtherMaskError):
        visible_of(masking_utils.sliding_window_causal_mask_function(4096), None)


@pytest.mark.parametrize(
    ("rule", "seen"),
    (
        (masking_utils.bidirectional_mask_function, True),
        (masking_utils.causal_mask_function, False),
        (masking_utils.sliding_window_bidirectional_mask_function(4096), False),
    ),
)
def test_a_rule_that_shows_all_is_told_from_a_wide_window(rule, seen):
    assert sees_all(rule, None) == seen


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


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_of_the_same_model_agrees(family, folder, tmp_path):
    """As written by us, and as JSON may have it: float32's digits, whole numbers."""
    source = load_model(f"tiny-{family}")
    folder(family)
    path = tmp_path / "config.json"
    check_config(source, path.parent)
    text = path.read_text()
    for ours, theirs in (("1e-05", "9.999999747378752e-06"), ("10000.0", "10000")):
        text = text.replace(ours, theirs)
    path.write_text(text)
    check_config(source, path.parent)


OTHERS = {
    "epsilon": ("llama", {"rms_norm_eps": 1e-6}, ("rms_norm_eps is 1e-06", "model's is 1e-05")),
    "RoPE": (
        "llama",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        ("rope_theta is 500000.0", "is 10000.0", "rope_type is default", "is llama3"),
    ),
    "heads": ("qwen3", {"num_attention_heads": 4}, ("num_attention_heads is 4", "model's is 8")),
    "window": ("mistral", {"sliding_window": None}, ("sliding_window is absent", "is 8")),
    "no window": (
        "llama",
        {"model_type": "mistral", "sliding_window": 9},
        ("sliding_window is 9",),
    ),
    "bias": ("llama", {"attention_bias": True}, ("attention_bias is True", "is False")),
    "layers": ("gemma3", {"layer_types": ["full_attention"] * 4}, ("layer_types",)),
    "local RoPE": (
        "gemma3",
        {"rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 2e4}}},
        ("rope_parameters.sliding_attention.rope_theta is 20000.0", "is 10000.0"),
    ),
    "cap": ("gemma2", {"attn_logit_softcapping": 20.0}, ("attn_logit_softcapping is 20.0",)),
    "activation": ("gpt2", {"activation_function": "relu"}, ("activation_function is relu",)),
    "family": ("llama", {"model_type": "qwen2"}, ("model_type is qwen2, the model's is llama",)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_config_of_another_model_is_refused(name, folder, tmp_path):
    """Each takes tensors of the same names and shapes, or more."""
    family, other, said = OTHERS[name]
    folder(family)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | other))
    with pytest.raises(ModelError) as refused:
        check_config(load_model(f"tiny-{family}"), path.parent)
    message = str(refused.value)
    assert all(part in message for part in (*said, str(path), "TOML", "hf:")), message


def test_a_loss_of_routers_of_an_encoder_decoder_is_refused(tmp_path):
    for given in ({"output_router_logits": True}, {}):
        classes = ["SwitchTransformersForConditionalGeneration"]
        config = transformers.SwitchTransformersConfig(**given, architectures=classes)
        config.router_aux_loss_coef = 0.001
        config.save_pretrained(tmp_path)
        if given:
            with pytest.raises(ModelError, match=r"adds 0\.001 times a loss of how all tokens"):
                load_model(f"hf:{tmp_path}")
    assert load_model(f"hf:{tmp_path}").vocab_size == config.vocab_size


def test_routers_that_draw_experts_are_refused(tmp_path):
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1}
    config = transformers.PhimoeConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"PhimoeForCausalLM draw experts at random"):
        load_model(f"hf:{tmp_path}").build()


def test_a_class_gives_the_load_of_its_routers_where_it_makes_a_loss_of_them(tmp_path):
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 4}
    tokens = torch.arange(12).view(3, 4)
    for factor in (0.5, 0.0):
        config = transformers.MixtralConfig(
            **sizes, output_router_logits=True, router_aux_loss_coef=factor
        )
        config.save_pretrained(tmp_path)
        source = load_model(f"hf:{tmp_path}")
        out = source.build()(tokens)
        assert isinstance(out, dict) == (factor > 0)
        if factor:
            assert out["router_load"].shape == (3, 2, 4)
            plain = source.plain()
            own = plain.hf(input_ids=tokens).aux_loss * factor
            torch.testing.assert_close(plain(tokens)["router_loss"], own)


def test_a_mistral_without_a_window_is_a_llama(folder, tmp_path):
    folder("llama")
    path = tmp_path / "config.json"
    other = {"model_type": "mistral", "sliding_window": None}
    path.write_text(json.dumps(json.loads(path.read_text()) | other))
    check_config(load_model("tiny-llama"), path.parent)


def test_without_transformers_an_export_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"needs transformers; pip install 'meshwright\[hf\]'"):
        config_to_write(load_model("tiny"))
