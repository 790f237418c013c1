"""A model that transformers made and trained goes on here as it would have gone on there."""

from pathlib import Path

import pytest
import torch
import transformers
from continuation_rows import VOCAB, rows

import meshwright as mw

SEQ, ROWS, FIRST, STEPS, RATE = 24, 8, 10, 50, 2e-3
CONFIGS = {
    "qwen3": transformers.Qwen3Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
        bos_token_id=None, eos_token_id=None, architectures=["Qwen3ForCausalLM"],
    ),
    "mamba2": transformers.Mamba2Config(
        vocab_size=VOCAB, hidden_size=32, num_heads=8, head_dim=8, n_groups=2, state_size=8,
        num_hidden_layers=2, chunk_size=8, bos_token_id=None, eos_token_id=None, pad_token_id=0,
        architectures=["Mamba2ForCausalLM"],
    ),
}  # fmt: skip
PLANS = {1: {}, 2: {"tp": 2, "shard_weights": 1}, 4: {"dp": 2, "pp": 2}}


def _trained(model: torch.nn.Module, first: int, steps: int) -> list[float]:
    """Train by plain PyTorch on the rows of `steps` steps; return the losses."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(first, first + steps):
        batch = torch.stack([rows(step * ROWS + n, SEQ + 1) for n in range(ROWS)])
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.fixture(scope="module", params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A class with the weights that some steps of plain training leave."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[request.param]).train()
    _trained(model, 1000, FIRST)
    path = tmp_path_factory.mktemp("stock")
    model.save_pretrained(path)
    return path


@pytest.mark.long
@pytest.mark.parametrize("ranks", PLANS)
def test_its_losses_are_those_of_plain_training(folder: Path, ranks: int, tmp_path: Path) -> None:
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    expected = _trained(plain.train(), 0, STEPS)
    job = mw.Job(seq=SEQ, global_batch=ROWS, pins=PLANS[ranks], search=False)
    program = mw.compile(mw.plan(f"hf:{folder}", cluster=f"cpu:{ranks}", job=job), tmp_path / "p")
    run = mw.run(
        program, data=rows, steps=STEPS, weights=str(folder), lr=RATE, schedule="constant",
        warmup=0, no_compile=True, out=str(tmp_path / "run"),
    )  # fmt: skip
    assert expected[-1] < 0.8 * expected[0]
    torch.testing.assert_close(torch.tensor(run.losses), torch.tensor(expected), rtol=1e-4, atol=0)
