"""Commands believe what a checkpoint says of its model and its tokens, and refuse what differs."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from meshwright.api.identity import identity_of
from meshwright.cli import main
from meshwright.codegen.program import emit
from meshwright.ir.capture.export import trace
from meshwright.ir.text.plan_text import format_plan, parse_plan
from meshwright.models import load_model
from meshwright.runtime.checkpoint import Loaded
from meshwright.runtime.checkpoint.manifest import digest_of, read_manifest
from meshwright.runtime.identity import (
    Identity,
    IdentityError,
    ModelIdentity,
    TokenizerIdentity,
    read_identity,
)
from meshwright.runtime.training import recovery
from meshwright.runtime.training.options import RunOptions
from meshwright.runtime.training.recovery import Recovery

SIZES = ("--seq", "8", "--global-batch", "2", "--cluster", "cpu:1", "--no-search")
RUN = ("--steps", "2", "--save-every", "2", "--eval-batches", "1", "--no-compile")
STEP = "run/checkpoints/step_00000002"
MODEL = 'preset = "tiny-llama"\nlayers = 1\n'


def _write_tokenizer(path: Path, turn: int) -> None:
    """A byte a token, its id `turn` further than in other files."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: (n + turn) % 256 for n, letter in enumerate(letters)}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(path))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of model.toml on shards of first.json, in the folder's run/; and other models."""
    folder = tmp_path_factory.mktemp("identity")
    for name, turn in (("first", 0), ("second", 1)):
        _write_tokenizer(folder / f"{name}.json", turn)
    (folder / "text.txt").write_text("def f(x): return x\n" * 50)
    first = ["--tokenizer", str(folder / "first.json"), "--eos", "none"]
    data = str(folder / "data")
    assert main(["data", "tokenize", str(folder / "text.txt"), *first, "-o", data]) == 0
    others = {"model": "", "theta": "rope_theta = 7.0\nnorm_eps = 1e-6", "wide": "ffn = 48"}
    for name, text in others.items():
        (folder / f"{name}.toml").write_text(MODEL + text)
    plan, program = str(folder / "plan.txt"), str(folder / "program")
    assert main(["plan", str(folder / "model.toml"), *SIZES, "-o", plan]) == 0
    assert main(["compile", plan, "-o", program]) == 0
    words = ["--data", f"shards:{data}", "--eval-data", f"shards:{data}", *RUN]
    assert main(["run", program, *words, "--out", str(folder / "run")]) == 0
    return folder


def _rewritten(made: Path, copy: Path, change: Callable[[dict], object]) -> str:
    """A copy of the checkpoint, what its manifest says changed."""
    shutil.copytree(made / STEP, copy)
    said = json.loads((copy / "manifest.json").read_text())
    change(said)
    (copy / "manifest.json").write_text(json.dumps(said | {"sha256": digest_of(said)}))
    return str(copy)


def test_a_plan_and_its_program_state_the_model_that_the_checkpoint_holds(made: Path) -> None:
    plan = parse_plan((made / "plan.txt").read_text())
    assert format_plan(plan) == (made / "plan.txt").read_text()
    held = read_manifest(made / STEP).identity
    assert read_identity(made / "program") == Identity.from_text(plan.identity)
    assert read_identity(made / "program") == replace(held, tokenizer=None)
    assert held.model is not None and held.model.config["layers"] == 1
    unsaid = replace(plan, identity="")
    assert parse_plan(format_plan(unsaid)) == unsaid and "identity.json" not in emit(unsaid)


def _forget(said: dict) -> None:
    del said["identity"]


def test_a_checkpoint_is_exported_and_sampled_by_what_it_says_itself(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, named, unnamed = str(made / STEP), tmp_path / "named", tmp_path / "unnamed"
    model = ["--model", str(made / "model.toml")]
    assert main(["export", checkpoint, *model, "-o", str(named)]) == 0
    assert main(["export", checkpoint, "-o", str(unnamed)]) == 0
    assert (named / "config.json").read_text() == (unnamed / "config.json").read_text()
    first, second = (load_file(f / "model.safetensors") for f in (named, unnamed))
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    texts = []
    tokenizer = ["--tokenizer", str(made / "first.json")]
    for words in ([checkpoint], [str(unnamed)], [checkpoint, *model, *tokenizer]):
        capsys.readouterr()
        assert main(["generate", *words, "--prompt", "def", "--max-tokens", "4", "--json"]) == 0
        texts += json.loads(capsys.readouterr().out)["samples"]
    assert texts[0].startswith("def") and len(set(texts)) == 1, texts


# Words behind the checkpoint, where {} is the folder of the fixture, and what the refusal holds.
OF_A_CHECKPOINT = {
    "fields": (
        ("export", "--model", "{}/theta.toml"),
        ("(model, this is theta): norm_eps is 1e-05 there and 1e-06 here, rope_theta is 10000.0 "
        "there and 7.0 here; leave out --model"),
    ),
    "sizes": (("export", "--model", "{}/wide.toml"), "ffn is 128 there and 48 here"),
    "a preset": (("generate", "--model", "tiny-qwen3"), "qk_norm is False there and True here"),
    "kind": (("export", "--model", "py:odd_model:build"), "kind is decoder there and py here"),
    "tokenizer": (
        ("generate", "--tokenizer", "{}/second.json"),
        "was trained on tokens of first.json (",
    ),
    "bytes": (("generate", "--tokenizer", "bytes"), "or take this one by --accept-tokenizer"),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_A_CHECKPOINT)
def test_what_differs_from_a_checkpoint_is_refused(
    name: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (command, *words), said = OF_A_CHECKPOINT[name]
    given = [word.format(made) for word in words]
    out = ["-o", str(tmp_path / "out")] if command == "export" else []
    assert said in refused(capsys, command, str(made / STEP), *given, *out)
    assert not (tmp_path / "out").exists()


def test_another_tokenizer_is_taken_on_purpose(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--tokenizer", str(made / "second.json"), "--accept-tokenizer", "--max-tokens", "1"]
    assert main(["generate", str(made / STEP), "--prompt", "def", *words]) == 0
    assert capsys.readouterr().out.startswith("def")


def test_a_tokenizer_that_is_gone_is_asked_for(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def move(said: dict) -> None:
        said["identity"]["tokenizer"]["path"] = "/nowhere/first.json"

    checkpoint = _rewritten(made, tmp_path / "step_00000002", move)
    assert "no longer at /nowhere/first.json; give its" in refused(capsys, "generate", checkpoint)
    words = ["--tokenizer", str(made / "first.json"), "--max-tokens", "1"]
    assert main(["generate", checkpoint, *words]) == 0


def test_an_older_checkpoint_needs_its_model_and_is_compared_by_shapes(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, out = _rewritten(made, tmp_path / "step_00000002", _forget), str(tmp_path / "out")
    error = refused(capsys, "export", checkpoint, "-o", out)
    assert "written before checkpoints held their model; it was called 'model'" in error
    words = ["export", checkpoint, "-o", out, "--model"]
    error = refused(capsys, *words, str(made / "wide.toml"))
    assert "layers.0.ffn.down.weight is [64, 128] there and [64, 48] here" in error
    assert not Path(out).exists()
    assert main([*words, str(made / "model.toml")]) == 0


def test_a_resume_on_tokens_of_another_tokenizer_is_refused(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def change(said: dict) -> None:
        said["identity"]["tokenizer"] |= {"name": "old", "sha256": "0" * 64, "vocab_sha256": ""}

    checkpoint = _rewritten(made, tmp_path / "step_00000002", change)
    words = ["--data", f"shards:{made / 'data'}", "--resume", checkpoint, *RUN]
    assert main(["run", str(made / "program"), *words, "--out", str(tmp_path / "run")]) == 2
    error = capfd.readouterr().err
    assert "trained on tokens of old (000000000000), these are of first.json (" in error
    assert "--weights and --accept-tokenizer" in error and len(error.splitlines()) == 1


def test_damage_to_an_identity_is_seen(made: Path, tmp_path: Path) -> None:
    def change(said: dict) -> None:
        said["identity"]["model"]["config"]["rope_theta"] = 7.0

    copy = _rewritten(made, tmp_path / "step_00000002", change)
    with pytest.raises(ValueError, match="the model's SHA-256 is .*, it says .*by hand"):
        read_manifest(Path(copy))


# Models of the user's own code


def _code(text: str) -> str:
    return (
        "from dataclasses import replace\nfrom meshwright.models import PRESETS\n"
        "from meshwright.models.decoder import Decoder\n\n"
        f"def build():\n    return Decoder(replace(PRESETS['tiny-llama'], layers=1{text}))\n"
    )


def test_a_model_of_own_code_is_compared_by_shapes_and_graph(
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its parameters are those of the checkpoint, which is made to say that it is of this code."""
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = {"same": "", "moved": "", "theta": ", rope_theta=7.0", "wide": ", ffn=48"}
    for name, text in modules.items():
        (tmp_path / f"own_{name}.py").write_text("\n" * (name == "moved") + _code(text))
    spare = "def spare():\n    made = build()\n    made.spare = Linear(2, 2)\n    return made\n"
    spare = f"from torch.nn import Linear\n{_code('')}\n\n{spare}"
    (tmp_path / "own_spare.py").write_text(spare)
    source = load_model("py:own_same:build")
    identity = identity_of(source, trace(source.build, source.name, "f32", source.vocab_size))

    def change(said: dict) -> None:
        said["identity"] = identity.to_json()

    checkpoint = _rewritten(made, tmp_path / "step_00000002", change)
    for name, said in (("theta", "its graph is "), ("wide", "[64, 128] there and [64, 48] here")):
        words = ["--model", f"py:own_{name}:build", "-o", str(tmp_path / "refused")]
        assert said in refused(capsys, "export", checkpoint, *words)
    taken = {"itself": (), "moved": ("--model", "py:own_moved:build")}
    taken["theta"] = ("--model", "py:own_theta:build", "--accept-graph")
    taken["spare"] = ("--model", "py:own_spare:spare")
    for name, words in taken.items():
        assert main(["export", checkpoint, *words, "-o", str(tmp_path / name)]) == 0, name
    assert "without 2 parameters that the forward does not read" in capsys.readouterr().err
    for name in ("itself", "spare"):
        weights = load_file(tmp_path / name / "model.safetensors")
        assert sorted(weights) == sorted(dict(source.build().named_parameters()))
    assert "no class of transformers to sample from" in refused(capsys, "generate", checkpoint)

    def lose(said: dict) -> None:
        model = replace(identity.model, name="py:no_such_module:build")
        said["identity"] = Identity(model, None).to_json()

    lost = _rewritten(made, tmp_path / "lost", lose)
    error = refused(capsys, "export", lost, "-o", str(tmp_path / "refused"))
    assert "cannot import no_such_module" in error and "PYTHONPATH" in error


# A run that starts from weights


LLAMA = ModelIdentity("decoder", "llama", "f32", load_model("tiny-llama").config_fields, "a")
THETA = replace(LLAMA, config={**LLAMA.config, "rope_theta": 7.0})
STOCK_FIELDS = {
    "model_type": "llama",
    "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"},
    "rms_norm_eps": 1e-5,
    "head_dim": 8,
}
STOCK = ModelIdentity("hf", "hf:x", "f32", STOCK_FIELDS, "a")
OWN = ModelIdentity("py", "py:m:f", "f32", {}, "a")
FIRST = TokenizerIdentity("tokenizers", "first", "", "1" * 64)
SECOND = TokenizerIdentity("tokenizers", "second", "", "2" * 64)

# What the program and its data are, what the folder of weights says (an identity, or the fields of
# a config.json), more options, and what the refusal holds, "" for none.
WEIGHTS: dict[str, tuple[Identity, Identity | dict, dict, str]] = {
    "fields": (Identity(LLAMA), Identity(THETA), {}, "rope_theta is 7.0 there and 10000.0 here"),
    "the same": (Identity(LLAMA, FIRST), Identity(LLAMA, FIRST), {}, ""),
    "started otherwise": (
        Identity(LLAMA),
        Identity(replace(LLAMA, name="y", config={**LLAMA.config, "init_std": 9.0})), {}, "",
    ),
    "another dtype": (Identity(OWN), Identity(replace(OWN, dtype="bf16", graph="b")), {}, ""),
    "code": (Identity(OWN), Identity(replace(OWN, graph="b")), {}, "its graph is b there and a"),
    "code under another loss": (
        Identity(OWN), Identity(replace(OWN, graph="b"), None, "py:m:loss"), {}, "",
    ),
    "code accepted": (
        Identity(OWN), Identity(replace(OWN, graph="b")), {"accept_graph": True}, "",
    ),
    "tokens": (Identity(LLAMA, FIRST), Identity(LLAMA, SECOND), {}, "trained on tokens of second"),
    "tokens accepted": (
        Identity(LLAMA, FIRST), Identity(None, SECOND), {"accept_tokenizer": True}, "",
    ),
    "nothing known": (Identity(LLAMA, FIRST), Identity(), {}, ""),
    "no tokenizer": (Identity(LLAMA), Identity(LLAMA, SECOND), {}, ""),
    "stock config": (
        Identity(STOCK), {"model_type": "llama", "rope_theta": 5e5, "head_dim": None}, {},
        "rope_parameters.rope_theta is 500000.0 there and 10000.0 here",
    ),
    "stock family": (
        Identity(STOCK), {"model_type": "qwen3", "rms_norm_eps": 1e-6}, {},
        ": model_type is qwen3 there and llama here;",
    ),
    "stock, the same": (
        Identity(STOCK), {"model_type": "llama", "rope_theta": 1e4, "attention_dropout": 0.1}, {},
        "",
    ),
    "stock config of ours": (Identity(LLAMA), {"model_type": "qwen3"}, {}, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_of_another_model_or_other_tokens(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs, more, said = WEIGHTS[name]
    known = isinstance(theirs, Identity)
    text = theirs.text() if isinstance(theirs, Identity) else json.dumps(theirs)
    (tmp_path / ("identity.json" if known else "config.json")).write_text(text)
    options = RunOptions(weights=str(tmp_path), out=str(tmp_path / "run"), **more)
    monkeypatch.setattr(recovery, "load_weights", lambda executor, folder: Loaded(1, [], []))
    state = SimpleNamespace(identity=ours, executor=None)
    run = Recovery(options, state, lambda text: None, logs=False)  # type: ignore[arg-type]
    if not said:
        assert run.start() == 0
        return
    with pytest.raises(IdentityError) as error:
        run.start()
    assert said in str(error.value) and str(tmp_path) in str(error.value)


def test_a_tokenizer_in_the_folder_of_weights_is_compared(tmp_path: Path) -> None:
    _write_tokenizer(tmp_path / "tokenizer.json", 0)
    options = RunOptions(weights=str(tmp_path), out=str(tmp_path / "run"))
    state = SimpleNamespace(identity=Identity(None, FIRST), executor=None)
    with pytest.raises(IdentityError, match="these are of first .*--accept-tokenizer"):
        Recovery(options, state, lambda text: None, logs=False).start()  # type: ignore[arg-type]


def test_an_identity_is_read_as_it_was_written() -> None:
    for both in (Identity(), Identity(STOCK, FIRST), Identity(OWN, loss="py:m:f")):
        assert Identity.from_text(both.text()) == both
    for text in ("{", "[]", '{"model": {}, "tokenizer": null}', '{"model": 1, "tokenizer": 2}'):
        with pytest.raises(IdentityError):
            Identity.from_text(text)
