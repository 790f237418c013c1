"""Weights as the library stores them: buffers among them, experts one by one."""

from pathlib import Path

import pytest
import torch
import transformers
from continuation_rows import VOCAB, rows
from safetensors.torch import load_file, save_file

import meshwright as mw
from meshwright.cli import main
from meshwright.runtime.checkpoint.manifest import Files
from meshwright.runtime.checkpoint.weights import assemble, find_weight, stored_weights

SEQ, ROWS, STEPS, RATE = 12, 4, 6, 2e-3
BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"
# A router chooses experts by scores and a bias, which is a buffer.
CONFIG = transformers.DeepseekV3Config(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=48, moe_intermediate_size=16,
    num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, n_routed_experts=4,
    num_experts_per_tok=2, n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1,
    q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
    max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
    architectures=["DeepseekV3ForCausalLM"],
)  # fmt: skip


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights whose bias sends every token to experts 2 and 3."""
    torch.manual_seed(0)
    model = transformers.DeepseekV3ForCausalLM(CONFIG)
    model.get_buffer(BIAS).copy_(torch.tensor([-5.0, -5.0, 5.0, 5.0]))
    path = tmp_path_factory.mktemp("stock")
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def program(stock: Path, tmp_path_factory: pytest.TempPathFactory) -> mw.Program:
    job = mw.Job(seq=SEQ, global_batch=ROWS, pins={"dp": 2, "zero": 3}, search=False)
    made = mw.plan(f"hf:{stock}", cluster="cpu:2", job=job)
    return mw.compile(made, tmp_path_factory.mktemp("made") / "p")


def _run(program: mw.Program, weights: Path, out: Path) -> mw.RunResult:
    return mw.run(
        program, data=rows, steps=STEPS, weights=str(weights), lr=RATE, schedule="constant",
        warmup=0, no_compile=True, quiet=True, out=str(out),
    )  # fmt: skip


def _by_transformers(stock: Path) -> list[float]:
    model = transformers.DeepseekV3ForCausalLM.from_pretrained(stock).train()
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        batch = torch.stack([rows(step * ROWS + n, SEQ + 1) for n in range(ROWS)])
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_a_buffer_of_the_weights_counts_and_is_exported(
    stock: Path, program: mw.Program, tmp_path: Path
) -> None:
    run = _run(program, stock, tmp_path / "run")
    expected = torch.tensor(_by_transformers(stock))
    torch.testing.assert_close(torch.tensor(run.losses), expected, rtol=1e-4, atol=0)
    assert main(["export", str(tmp_path / "run"), "-o", str(tmp_path / "hf")]) == 0
    back = transformers.DeepseekV3ForCausalLM.from_pretrained(tmp_path / "hf")
    assert back.get_buffer(BIAS).tolist() == [-5.0, -5.0, 5.0, 5.0]


def test_weights_that_lack_a_buffer_leave_it_and_those_that_nothing_reads_are_named(
    stock: Path, program: mw.Program, tmp_path: Path
) -> None:
    weights = load_file(stock / "model.safetensors")
    del weights[BIAS]
    (tmp_path / "w").mkdir()
    save_file(weights | {"vision.tower": torch.zeros(3)}, tmp_path / "w" / "model.safetensors")
    _run(program, tmp_path / "w", tmp_path / "run")
    said = (tmp_path / "run" / "log.txt").read_text()
    assert f"hf.{BIAS} not there, as the model makes them" in said
    assert "not read, as the model has none of them: vision.tower" in said


STACKED = {
    "mixtral": transformers.MixtralConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, num_local_experts=3,
    ),
    "qwen3_moe": transformers.Qwen3MoeConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, head_dim=8, num_experts=3,
        moe_intermediate_size=8, num_experts_per_tok=2,
    ),
    "nemotron_h": transformers.NemotronHConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, layers_block_type=["moe"],
        n_routed_experts=3, moe_intermediate_size=8, moe_shared_expert_intermediate_size=8,
        num_experts_per_tok=2, n_group=1, topk_group=1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STACKED)
def test_experts_that_are_stored_one_by_one_are_those_of_the_class(
    name: str, tmp_path: Path
) -> None:
    """Each element once, whatever names the library gives the files."""
    model = transformers.AutoModelForCausalLM.from_config(STACKED[name])
    model.save_pretrained(tmp_path)
    stored = stored_weights(tmp_path)
    assert any(len(items) > 1 for items in stored.values())
    with Files(tmp_path) as files:
        for param, value in model.named_parameters():
            found = torch.full_like(value, torch.nan)
            assemble(found, find_weight(stored, f"hf.{param}", tuple(value.shape)), files)
            assert torch.equal(found, value), param
