"""Experts that a class of `transformers` goes through in a loop, captured as one product."""

import copy
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from meshwright.ir.capture.export import trace
from meshwright.ir.traced import Traced
from meshwright.models import ModelSource, load_model
from meshwright.proof.prove import Subject, prove

CONFIG = transformers.SwitchTransformersConfig(
    vocab_size=64, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_decoder_layers=2, num_heads=2,
    num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, num_experts=24, expert_capacity=2,
    router_bias=True, router_jitter_noise=0.0, dropout_rate=0.0, pad_token_id=0,
    decoder_start_token_id=0, architectures=["SwitchTransformersForConditionalGeneration"],
)  # fmt: skip
_SIZES = {"vocab_size": 64, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
PACKED = {
    "dbrx": transformers.DbrxConfig(
        vocab_size=64, d_model=16, n_heads=2, n_layers=1,
        attn_config={"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        ffn_config={
            "ffn_hidden_size": 24, "hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2,
        },
    ),
    "longcat_flash": transformers.LongcatFlashConfig(  # two of its experts are identities
        **_SIZES, num_layers=1, ffn_hidden_size=24, q_lora_rank=8, kv_lora_rank=8, head_dim=8,
        qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8, moe_topk=3, n_routed_experts=4,
        zero_expert_num=2, expert_ffn_hidden_size=12,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PACKED)
def test_packed_experts_are_those_of_the_class(name: str, tmp_path: Path) -> None:
    PACKED[name].save_pretrained(tmp_path)
    source = load_model(f"hf:{tmp_path}")
    traced = trace(source.build, name, "f64", source.vocab_size)
    assert any(op.target == "mw.expert_linear" for op in traced.graph.ops)
    assert source.plain
    prove(Subject(name, source.plain, source.vocab_size, None), traced)


def _captured(folder: Path, dtype: str) -> tuple[ModelSource, Traced]:
    CONFIG.save_pretrained(folder)
    source = load_model(f"hf:{folder}")
    return source, trace(source.build, "switch", dtype, source.vocab_size)


@pytest.mark.parametrize("dtype", ["f64", "bf16"])
def test_it_is_the_class(dtype: str, tmp_path: Path) -> None:
    """Of so many experts some have no token, and some more than their capacity."""
    source, traced = _captured(tmp_path, dtype)
    targets = [op.target for op in traced.graph.ops]
    assert targets.count("mw.expert_linear") == 4
    assert source.plain
    prove(Subject("switch", source.plain, source.vocab_size, None), traced)


def test_parameters_keep_their_names(tmp_path: Path) -> None:
    source, traced = _captured(tmp_path, "bf16")
    assert source.plain
    own: nn.Module = source.plain()
    assert {i.ref for i in traced.graph.inputs_of("param")} == {
        n for n, _ in own.named_parameters()
    }


def test_the_loss_is_that_of_the_class_where_its_config_asks_for_one_of_routers(
    tmp_path: Path,
) -> None:
    """The class reads `output_router_logits` as an argument of its forward alone."""
    config = copy.deepcopy(CONFIG)
    config.output_router_logits = True
    config.save_pretrained(tmp_path)
    source = load_model(f"hf:{tmp_path}")
    assert source.plain
    plain = source.plain()
    tokens = torch.arange(8).view(2, 4)
    made = plain(tokens, tokens)["router_loss"]
    assert abs(float(made.detach())) < 1e-5
