"""What classes of `transformers` do with a mask, or hand to attention beside it, is captured."""

from pathlib import Path

import pytest
import transformers
from layer_drop import skip_where_drawn
from sampling import mostly_long
from transformers.models.bigbird_pegasus import modeling_bigbird_pegasus

from meshwright.ir.capture.export import trace
from meshwright.models import load_model
from meshwright.proof.prove import Subject, prove

_GEMMA = {
    "vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6,
}  # fmt: skip
# A length, or None for every one.
CLASSES = {
    # Extends its mask by that of compressed keys, of 4 and of 6 tokens each.
    "deepseek_v4": (16, transformers.DeepseekV4Config(
        vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, head_dim=8,
        q_lora_rank=8, o_lora_rank=8, o_groups=2, moe_intermediate_size=8, n_routed_experts=4,
        num_experts_per_tok=2, sliding_window=6, hc_mult=2, hc_sinkhorn_iters=2,
        index_n_heads=2, index_head_dim=8, index_topk=2, mlp_layer_types=["moe"] * 2,
        layer_types=["compressed_sparse_attention", "heavily_compressed_attention"],
        compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 6},
    )),
    # Hides tokens of padding, so that the first of a row may see nothing.
    "t5gemma": (None, transformers.T5GemmaConfig(
        encoder=_GEMMA, decoder=_GEMMA, dropout_rate=0.0, vocab_size=64,
        architectures=["T5GemmaForConditionalGeneration"],
    )),
    # Its encoder attends by itself, and adds the mask to its scores.
    "bigbird_pegasus": (None, transformers.BigBirdPegasusConfig(
        vocab_size=64, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, dropout=0.0,
        max_position_embeddings=64, architectures=["BigBirdPegasusForConditionalGeneration"],
        pad_token_id=0, decoder_start_token_id=2,
    )),
}  # fmt: skip
if hasattr(transformers, "Inkling2TextConfig"):  # older transformers lack it
    # Has a sink of each query.
    CLASSES["inkling2_text"] = (None, transformers.Inkling2TextConfig(
        vocab_size=64, unpadded_vocab_size=64, hidden_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, head_dim=8, swa_num_attention_heads=2,
        swa_num_key_value_heads=2, swa_head_dim=8, sliding_window_size=6, rel_extent=6, d_rel=8,
        moe_intermediate_size=8, n_routed_experts=4, num_experts_per_tok=2,
    ))  # fmt: skip


@pytest.mark.parametrize(
    "name", mostly_long(CLASSES, "t5gemma", "bigbird_pegasus", "inkling2_text")
)
def test_masks_are_those_that_the_class_calculates_with(name: str, tmp_path: Path) -> None:
    if name == "bigbird_pegasus":
        skip_where_drawn(modeling_bigbird_pegasus.BigBirdPegasusEncoder)
    seq, config = CLASSES[name]
    config.save_pretrained(tmp_path)
    source = load_model(f"hf:{tmp_path}")
    assert source.plain
    traced = trace(source.build, name, "f64", source.vocab_size, seq=seq, alone=seq is not None)
    prove(Subject(name, source.plain, source.vocab_size, source.max_seq), traced)
