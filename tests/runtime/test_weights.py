"""Hugging Face weights in and out: equal logits, and nothing lost on the way."""

from pathlib import Path

import pytest
import torch
import transformers

from meshwright.cli import main

CONFIGS = {
    "llama": transformers.LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
        architectures=["LlamaForCausalLM"],
    ),
    "gpt2": transformers.GPT2Config(
        vocab_size=256, n_positions=64, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
        architectures=["GPT2LMHeadModel"],
    ),
}  # fmt: skip
RUN = ["--data", "demo", "--no-compile", "--eval-batches", "1", "--steps", "1", "--lr", "0"]


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_import_then_export_gives_back_every_tensor(family: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[family])
    stock = tmp_path / "stock"
    model.save_pretrained(stock)
    plan, program, run = (str(tmp_path / n) for n in ("plan.txt", "program", "run"))
    sizes = ["--seq", "32", "--global-batch", "4", "--cluster", "cpu:2"]
    pins = ["--pin", "tp=2", "--pin", "shard_weights=1"] if family == "gpt2" else []
    pins = pins or ["--pin", "dp=2", "--pin", "zero=3"]
    assert main(["plan", f"hf:{stock}", *sizes, *pins, "-o", plan]) == 0
    assert main(["compile", plan, "-o", program]) == 0
    weights = ["--weights", str(stock), "--save-every", "1", "--out", run]
    assert main(["run", program, *RUN, *weights]) == 0
    checkpoint = f"{run}/checkpoints/step_00000001"
    out = tmp_path / "export"
    assert main(["export", checkpoint, "--config", str(stock), "-o", str(out)]) == 0
    again = transformers.AutoModelForCausalLM.from_pretrained(out)
    for name, value in model.state_dict().items():  # a step at rate 0 changes nothing
        assert torch.equal(value, again.state_dict()[name]), name
    tokens = torch.randint(0, 256, (2, 16))
    assert torch.equal(model(tokens).logits, again(tokens).logits)


def test_weights_of_another_shape_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"])
    model.save_pretrained(tmp_path / "stock")
    wide = transformers.LlamaConfig(**{**CONFIGS["llama"].to_dict(), "intermediate_size": 96})
    wide.save_pretrained(tmp_path / "wide")
    plan, program = str(tmp_path / "plan.txt"), str(tmp_path / "program")
    sizes = ["--seq", "32", "--global-batch", "4", "--cluster", "cpu:1"]
    assert main(["plan", f"hf:{tmp_path / 'wide'}", *sizes, "-o", plan]) == 0
    assert main(["compile", plan, "-o", program]) == 0
    weights = ["--weights", str(tmp_path / "stock"), "--out", str(tmp_path / "run")]
    assert main(["run", program, *RUN, *weights]) == 2
    error = capfd.readouterr().err
    assert "[64, 32]" in error and "[96, 32]" in error
