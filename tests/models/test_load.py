"""Every way to name a model works, and every wrong name ends in one clear message."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from meshwright.models import PRESETS, ModelError, load_model, rebuild_model
from meshwright.models.stock import param_shapes


def test_preset():
    source = load_model("llama-7b")
    assert (source.name, source.vocab_size, source.max_seq) == ("llama-7b", 128256, 8192)


def test_toml_over_a_preset(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('preset = "tiny-gemma2"\nlayers = 2\nwindow = "none"\nrope_theta = 5000\n')
    source = load_model(str(path))
    config = source.build().config
    assert source.name == "mine"
    assert (config.layers, config.window, config.rope_theta) == (2, None, 5000.0)
    assert config.attention_softcap == PRESETS["tiny-gemma2"].attention_softcap


@pytest.mark.parametrize("kind", ("preset", "toml", "hf", "py"))
def test_a_model_is_rebuilt_of_what_it_says_of_itself(kind, tmp_path, stock_config):
    path = tmp_path / "mine.toml"
    path.write_text('preset = "tiny-gemma2"\nlayers = 2\nrope_theta = 5000\n')
    stock_config("qwen3").save_pretrained(tmp_path / "stock")
    specs = {"preset": "tiny", "toml": str(path), "hf": f"hf:{tmp_path / 'stock'}"}
    source = load_model(specs.get(kind, "py:odd_model:build"))
    said = json.loads(json.dumps(source.config_fields))
    shutil.rmtree(tmp_path)  # nothing is read again
    again = rebuild_model(source.kind, source.name, said)
    assert (again.kind, again.name, again.vocab_size) == (
        source.kind,
        source.name,
        source.vocab_size,
    )
    assert again.config == source.config and again.config_fields == said
    assert bool(said) == (kind != "py")
    assert param_shapes(again) == param_shapes(source)


def test_fields_of_another_version_are_refused():
    said = load_model("tiny").config_fields
    with pytest.raises(ModelError, match="tiny: no config of this version: .*'colour'"):
        rebuild_model("decoder", "tiny", {**said, "colour": 1})
    with pytest.raises(ModelError, match="hf:x: its config is refused: .*no_such_type"):
        rebuild_model("hf", "hf:x", {"model_type": "no_such_type"})


def test_toml_alone(tmp_path):
    path = tmp_path / "mine.toml"
    text = "dim = 32\nlayers = 2\nheads = 4\nffn = 64\nvocab = 256\nwindow = 4\n"
    path.write_text(text + "window_pattern = [true, false]\n")
    windows = [block.attention.core.window for block in load_model(str(path)).build().layers]
    assert windows == [4, None]


@pytest.mark.parametrize(
    ("text", "message"),
    (
        ("dim = ", "is not TOML"),
        ("dim = 32", "missing layers, heads, ffn, vocab"),
        ('preset = "tiny-gemma"', "unknown preset 'tiny-gemma'; nearest: tiny-gemma"),
        ('preset = "tiny"\nlayer = 3', "unknown key 'layer'; nearest: layers"),
        ('preset = "tiny"\nlayers = "3"', "layers = '3': must be int"),
        ('preset = "tiny"\nlayers = true', "layers = True: must be int"),
        ('preset = "tiny"\nwindow_pattern = 1', "must be a list of true and false"),
        ('preset = "tiny"\nheads = 5', "mine.toml: dim = 128 is not a multiple of heads = 5"),
    ),
)
def test_bad_toml(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ModelError, match=message):
        load_model(str(path))


def test_missing_toml():
    with pytest.raises(ModelError, match="cannot read nowhere.toml: No such file"):
        load_model("nowhere.toml")


@pytest.mark.parametrize("spec", ("lama-7b", "", "llama", "/etc"))
def test_unknown_name(spec):
    with pytest.raises(ModelError, match="unknown model"):
        load_model(spec)


def test_unknown_name_tells_the_nearest():
    with pytest.raises(ModelError, match="nearest: llama-7b"):
        load_model("lama-7b")


FACTORY = """
from torch import nn

class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(96, 96)

    def forward(self, tokens):
        return self.table(tokens)

def stated():
    model = Bigram()
    model.vocab_size, model.max_seq = 64, 128
    return model

def reads_values():
    model = Bigram()
    float(model.table.weight.detach().sum())
    return model

def broken():
    raise RuntimeError("no luck")

def number():
    return 3

def without_vocabulary():
    return nn.Linear(2, 2)

constant = 3
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "bigram_of_mine.py").write_text(FACTORY)
    (tmp_path / "broken_of_mine.py").write_text("import nothing_of_this_name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "py:bigram_of_mine"


@pytest.mark.parametrize(
    ("factory", "vocab", "max_seq"),
    (("Bigram", 96, None), ("stated", 64, 128), ("reads_values", 96, None)),
)
def test_factory(own_module, factory, vocab, max_seq):
    source = load_model(f"{own_module}:{factory}")
    assert (source.vocab_size, source.max_seq) == (vocab, max_seq)
    assert source.build()(torch.zeros(1, 5, dtype=torch.int64)).shape == (1, 5, 96)


@pytest.mark.parametrize(
    ("rest", "message"),
    (
        ("", "write py:module:factory"),
        (":", "write py:module:factory"),
        (":bigram", "has no 'bigram'; nearest: Bigram"),
        (":constant", "constant is a int, not a function"),
        (":broken", "the factory failed: RuntimeError: no luck"),
        (":number", "returned a int, not an nn.Module"),
        (":without_vocabulary", "no vocabulary found"),
    ),
)
def test_bad_factory(own_module, rest, message):
    with pytest.raises(ModelError, match=message):
        load_model(own_module + rest)


def test_bad_import(own_module):
    with pytest.raises(
        ModelError, match="cannot import broken_of_mine: ModuleNotFoundError: No module named"
    ):
        load_model("py:broken_of_mine:make")


@pytest.mark.parametrize(
    ("config", "message"),
    (
        (None, "no file .*config.json"),
        ({"model_type": "no-such-model"}, "config.json refused"),
        ({"model_type": "vit"}, "vit is no causal language model of transformers, and no encoder-"),
    ),
)
def test_bad_hugging_face_folder(tmp_path, config, message):
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message):
        load_model(f"hf:{tmp_path}")
