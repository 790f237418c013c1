"""Hugging Face weights in and out: equal logits, and nothing lost on the way."""

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from refusals import one_line, refused
from safetensors.torch import load_file, save_file
from sampling import mostly_long
from tokenizers import Tokenizer, models

from meshwright.cli import main
from meshwright.models import load_model
from meshwright.models.generate import Sampling, generate
from meshwright.runtime.checkpoint import weights
from meshwright.runtime.metrics import progress

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


@pytest.mark.parametrize("family", mostly_long(sorted(CONFIGS), "llama"))
def test_import_then_export_gives_back_every_tensor(family: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[family])
    stock = tmp_path / "stock"
    model.save_pretrained(stock)
    plan, program, run = (str(tmp_path / n) for n in ("plan.txt", "program", "run"))
    sizes = ["--seq", "32", "--global-batch", "4", "--cluster", "cpu:2", "--no-search"]
    pins = ["--pin", "tp=2", "--pin", "shard_weights=1"] if family == "gpt2" else []
    pins = pins or ["--pin", "dp=2", "--pin", "zero=3"]
    assert main(["plan", f"hf:{stock}", *sizes, *pins, "-o", plan]) == 0
    assert main(["compile", plan, "-o", program]) == 0
    weights = ["--weights", str(stock), "--save-every", "1", "--out", run]
    assert main(["run", program, *RUN, *weights]) == 0
    checkpoint = f"{run}/checkpoints/step_00000001"
    out = tmp_path / "export"
    assert main(["export", checkpoint, "--model", f"hf:{stock}", "-o", str(out)]) == 0
    again = transformers.AutoModelForCausalLM.from_pretrained(out)
    for name, value in model.state_dict().items():  # a step at rate 0 changes nothing
        assert torch.equal(value, again.state_dict()[name]), name
    tokens = torch.randint(0, 256, (2, 16))
    assert torch.equal(model(tokens).logits, again(tokens).logits)


def test_the_config_of_an_export_names_the_dtype_of_its_weights(tmp_path: Path) -> None:
    """A folder of bfloat16, trained with weights of float32."""
    stock, out = tmp_path / "stock", tmp_path / "export"
    transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"]).bfloat16().save_pretrained(
        stock
    )
    assert json.loads((stock / "config.json").read_text())["dtype"] == "bfloat16"
    plan, program, run = (str(tmp_path / n) for n in ("plan.txt", "program", "run"))
    sizes = ["--seq", "32", "--global-batch", "4", "--cluster", "cpu:1", "--no-search"]
    assert main(["plan", f"hf:{stock}", *sizes, "-o", plan]) == 0
    assert main(["compile", plan, "-o", program]) == 0
    assert main(["run", program, *RUN, "--weights", str(stock), "--out", run]) == 0
    assert main(["export", run, "-o", str(out)]) == 0
    weights = load_file(out / "model.safetensors").values()
    assert {value.dtype for value in weights} == {torch.float32}
    assert json.loads((out / "config.json").read_text())["dtype"] == "float32"
    again = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert {value.dtype for value in again.parameters()} == {torch.float32}


def test_a_tied_head_that_is_stored_with_other_values_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stock, plan, program = tmp_path / "stock", str(tmp_path / "plan.txt"), str(tmp_path / "program")
    transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"]).save_pretrained(stock)
    sizes = ["--seq", "32", "--global-batch", "4", "--cluster", "cpu:2", "--no-search"]
    assert main(["plan", f"hf:{stock}", *sizes, "--pin", "dp=2", "-o", plan]) == 0
    assert main(["compile", plan, "-o", program]) == 0
    weights = load_file(stock / "model.safetensors")
    table = weights["model.embed_tokens.weight"]
    weights["lm_head.weight"] = table.clone()
    save_file(weights, stock / "model.safetensors")
    words = ["run", program, *RUN, "--weights", str(stock), "--out"]
    assert main([*words, str(tmp_path / "equal")]) == 0
    weights["lm_head.weight"][-1, -1] += 1
    save_file(weights, stock / "model.safetensors")
    capfd.readouterr()
    assert main([*words, str(tmp_path / "run")]) == 2
    error = one_line(capfd.readouterr().err)
    assert f"{stock} holds lm_head.weight and model.embed_tokens.weight with other values" in error
    assert "set tie_word_embeddings to false in config.json" in error


@pytest.mark.long
def test_weights_of_another_shape_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"])
    model.save_pretrained(tmp_path / "stock")
    wide = transformers.LlamaConfig(**{**CONFIGS["llama"].to_dict(), "intermediate_size": 96})
    wide.save_pretrained(tmp_path / "wide")
    plan, program = str(tmp_path / "plan.txt"), str(tmp_path / "program")
    sizes = ["--seq", "32", "--global-batch", "4", "--cluster", "cpu:1", "--no-search"]
    assert main(["plan", f"hf:{tmp_path / 'wide'}", *sizes, "-o", plan]) == 0
    assert main(["compile", plan, "-o", program]) == 0
    weights = ["--weights", str(tmp_path / "stock"), "--out", str(tmp_path / "run")]
    assert main(["run", program, *RUN, *weights]) == 2
    error = capfd.readouterr().err
    assert "intermediate_size is 64 there and 96 here" in error


def test_stock_weights_for_a_model_of_ours_are_refused_with_the_way(
    checkpoint: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stock, program = tmp_path / "stock", str(Path(checkpoint).parents[2] / "program")
    assert main(["export", checkpoint, "--model", "tiny-llama", "-o", str(stock)]) == 0
    words = ["--weights", str(stock), "--out", str(tmp_path / "run")]
    assert main(["run", program, *RUN, *words]) == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert "no tensor " in error and error.endswith(
        "meshwright import makes such a folder of a Hugging Face one"
    )


# The tables of all seven are held in tests/models; these have what differs: nothing, norms, fused
FAMILIES = ("llama", "gemma3", "gpt2")


@pytest.mark.parametrize("family", mostly_long(FAMILIES, "llama"))
def test_our_families_go_to_the_stock_class_and_back(family: str, tmp_path: Path) -> None:
    """A checkpoint of two ranks, exported, loads with equal logits; imported, nothing changed."""
    model = f"tiny-{family}"
    plan, program, run = (str(tmp_path / n) for n in ("plan.txt", "program", "run"))
    sizes = ["--seq", "32", "--global-batch", "4", "--cluster", "cpu:2", "--no-search"]
    assert (
        main(["plan", model, *sizes, "--pin", "tp=2", "--pin", "shard_weights=1", "-o", plan]) == 0
    )
    assert main(["compile", plan, "-o", program]) == 0
    assert main(["run", program, *RUN, "--save-every", "1", "--out", run]) == 0
    checkpoint, stock = f"{run}/checkpoints/step_00000001", tmp_path / "stock"
    assert main(["export", checkpoint, "--model", model, "-o", str(stock)]) == 0
    assert main(["import", str(stock), "--model", model, "-o", str(tmp_path / "ours")]) == 0
    ours = load_file(tmp_path / "ours" / "model.safetensors")
    module = load_model(model).build()
    missing, unexpected = module.load_state_dict(ours, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"} | _buffers(module)
    twin = transformers.AutoModelForCausalLM.from_pretrained(stock, attn_implementation="eager")
    tokens = torch.randint(0, 256, (2, 24))
    torch.testing.assert_close(module(tokens), twin(tokens).logits, rtol=1e-4, atol=1e-4)
    again = ["run", program, *RUN, "--save-every", "1", "--weights", str(tmp_path / "ours")]
    assert main([*again, "--out", str(tmp_path / "again")]) == 0
    back = tmp_path / "back"
    checkpoint = str(tmp_path / "again" / "checkpoints" / "step_00000001")
    assert main(["export", checkpoint, "--model", model, "-o", str(back)]) == 0
    first, second = (load_file(p / "model.safetensors") for p in (stock, back))
    assert sorted(first) == sorted(second)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_weights_of_another_model_of_the_same_shape_are_not_imported(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stock, ours = tmp_path / "stock", tmp_path / "ours"
    assert main(["export", checkpoint, "--model", "tiny-llama", "-o", str(stock)]) == 0
    config = json.loads((stock / "config.json").read_text())
    (stock / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-6}))
    words = ["import", str(stock), "--model", "tiny-llama", "-o", str(ours)]
    assert main(words) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "rms_norm_eps is 1e-06, the model's is 1e-05" in error and f"hf:{stock}" in error
    assert not ours.exists()
    (stock / "config.json").unlink()  # weights alone say nothing of it
    assert main(words) == 0


def test_weights_are_not_written_among_others(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader would take the old `model.safetensors`, not the index of the new files."""
    out = tmp_path / "export"
    out.mkdir()
    (out / "model.safetensors").write_bytes(b"of another export")
    assert main(["export", checkpoint, "--model", "tiny-llama", "-o", str(out)]) == 2
    assert "1 file of weights already" in capsys.readouterr().err
    assert (out / "model.safetensors").read_bytes() == b"of another export"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python's own handler of Ctrl-C: a job in the background is started with none."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_export_that_is_interrupted_leaves_nothing(
    number: signal.Signals,
    code: int,
    interruptible: None,
    checkpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In its third file of many; and what one leaves that was killed is no obstacle to the next."""
    out, taken = tmp_path / "export", []
    assemble = weights.assemble

    def interrupted(*arguments: object) -> None:
        taken.append(sorted(path.name for path in out.iterdir()))
        if len(taken) == 3:
            os.kill(os.getpid(), number)
        assemble(*arguments)  # type: ignore[arg-type]

    words = ["export", checkpoint, "--model", "tiny-llama", "-o", str(out)]
    with monkeypatch.context() as patch:
        patch.setattr(weights, "assemble", interrupted)
        patch.setattr(weights, "FILE_BYTES", 1)
        assert main(words) == code
    assert len(taken) == 3 and all(name.endswith(".part") for name in taken[2])
    assert not list(out.iterdir())
    assert "nothing was left half-written" in capsys.readouterr().err
    (out / ".model.safetensors.part").write_bytes(b"of an export that was killed")
    assert main(words) == 0
    assert not list(out.glob("*.part")) and load_file(out / "model.safetensors")


def test_export_and_import_show_progress(
    checkpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(progress, "EVERY_IN_LOG_S", 0.0)
    stock, ours = str(tmp_path / "stock"), str(tmp_path / "ours")
    assert main(["export", checkpoint, "--model", "tiny-llama", "-o", stock]) == 0
    check, *export = capsys.readouterr().err.splitlines()
    assert check.startswith("check [########################] 100.0%  rank_00000.safetensors")
    assert main(["import", stock, "--model", "tiny-llama", "-o", ours]) == 0
    imported = capsys.readouterr().err.splitlines()
    for what, lines in (("export", export), ("import", imported)):
        count = len(lines)
        assert count > 10 and all(line.startswith(f"{what} [") for line in lines)
        assert f"{count} of {count} tensors, 0.00 GiB" in lines[-1] and "100.0%" in lines[-1]


def _buffers(module: torch.nn.Module) -> set[str]:
    return {name for name, _ in module.named_buffers()}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One step of tiny-llama."""
    folder = tmp_path_factory.mktemp("generate")
    plan, program, run = (str(folder / n) for n in ("plan.txt", "program", "run"))
    sizes = ["--seq", "32", "--global-batch", "4", "--cluster", "cpu:1", "--no-search"]
    assert main(["plan", "tiny-llama", *sizes, "-o", plan]) == 0
    assert main(["compile", plan, "-o", program]) == 0
    assert main(["run", program, *RUN, "--save-every", "1", "--out", run]) == 0
    return f"{run}/checkpoints/step_00000001"


def test_generate_goes_on_from_the_prompt(
    checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", checkpoint, "--model", "tiny-llama", "--prompt", "def f", "--json"]
    said = []
    for more in (["--temperature", "0"], ["--seed", "1"], ["--seed", "2", "--top-k", "1"]):
        capsys.readouterr()
        assert main([*words, "--max-tokens", "8", "--samples", "2", *more]) == 0
        said.append(json.loads(capsys.readouterr().out)["samples"])
    greedy, drawn, top = said
    assert all(text.startswith("def f") for text in greedy + drawn + top)
    assert greedy[0] == greedy[1] == top[0] and drawn[0] != drawn[1]


@pytest.mark.long
def test_generate_shows_no_bar_where_nobody_looks(checkpoint: str) -> None:
    """In a process of its own: the library's bar is on when a process begins."""
    words = [checkpoint, "--model", "tiny-llama", "--max-tokens", "1"]
    command = [sys.executable, "-m", "meshwright.cli", "generate", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "Loading weights" not in done.stderr, done.stderr


def test_a_models_own_way_to_sample_stays_out(checkpoint: str, tmp_path: Path) -> None:
    folder = tmp_path / "stock"
    assert main(["export", checkpoint, "--model", "tiny-llama", "-o", str(folder)]) == 0
    greedy = Sampling(max_tokens=24, temperature=0.0)
    plain = generate(folder, "def f", greedy, None)
    own = {"repetition_penalty": 50.0, "no_repeat_ngram_size": 1}
    (folder / "generation_config.json").write_text(json.dumps(own))
    assert generate(folder, "def f", greedy, None) == plain


def test_pickled_weights_are_not_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    CONFIGS["llama"].save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Path("bomb")))
    assert main(["generate", str(tmp_path)]) == 2
    assert "0 safetensors files; other weights are not opened" in capsys.readouterr().err


REFUSED = {
    "another": (("--model", "tiny-qwen3"), "is of another model (tiny-llama, this is tiny-qwen3)"),
    "top_p": (("--model", "tiny-llama", "--top-p", "2"), "top_p = 2.0"),
    "tokens": (("--model", "tiny-llama", "--max-tokens", "0"), "at least 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_generate_refuses(name: str, checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, said = REFUSED[name]
    capsys.readouterr()
    assert main(["generate", checkpoint, *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and said in error and "Traceback" not in error


def test_generate_names_the_checkpoint_that_has_fewer_tokens(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "large.json")
    Tokenizer(models.WordLevel({"def": 999, "?": 0}, unk_token="?")).save(path)
    words = [checkpoint, "--prompt", "def", "--tokenizer", path, "--accept-tokenizer"]
    said = f"the tokenizer gave token 999, {checkpoint} has 256"
    assert refused(capsys, "generate", *words).endswith(said)
