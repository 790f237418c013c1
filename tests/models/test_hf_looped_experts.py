"""Experts that a class of `transformers` goes through in a loop, captured as one product."""

from pathlib import Path

import pytest
import transformers

from meshwright.ir.capture.export import trace
from meshwright.ir.errors import CaptureError
from meshwright.models import load_model
from meshwright.proof.prove import Subject, prove

SWITCH = transformers.SwitchTransformersConfig(
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
    "jetmoe": transformers.JetMoeConfig(  # its attention has experts of queries, of outputs
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_key_value_heads=2, kv_channels=8,
        intermediate_size=24, num_local_experts=4, num_experts_per_tok=2,
        output_router_logits=True, aux_loss_coef=0.5,
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


def test_experts_that_are_modules_are_refused(tmp_path: Path) -> None:
    """AdamW leaves one alone that no token chose, whose gradient is None."""
    SWITCH.save_pretrained(tmp_path)
    with pytest.raises(CaptureError, match=r"the 24 experts of \S+ are modules"):
        trace(load_model(f"hf:{tmp_path}").build, "switch", "f64", 64)
