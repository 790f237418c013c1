"""Bad input that takes more than a command line (those are in mistakes/): files, ports, ranks."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import one_line, refused

import meshwright as mw
from meshwright.cli import main

SIZES = ("--seq", "8", "--global-batch", "4")
PLAN = ("plan", "tiny", *SIZES)


MODELS = {
    "no TOML": ("model = [", ("model.toml is not TOML",)),
    "no text": (b"\xff\xfe", ("model.toml is not TOML", "0xff")),
    "family": ('family = "mamba"', ("model.toml", "unknown key 'family'", "norm")),
    "kind of norm": ('preset = "tiny"\nnorm = "batch"', ("'batch'", "rms_plus_one")),
    "preset": ('preset = "tinny"', ("'tinny'", "nearest: tiny")),
    "too little": ("dim = 8", ("missing layers", "preset")),
    "heads": ('preset = "tiny"\nheads = 6', ("dim = 128", "heads = 6", "head_dim")),
}


@pytest.mark.parametrize("name", MODELS)
def test_plan_refuses_a_model_file(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text, said = MODELS[name]
    path = tmp_path / "model.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    message = refused(capsys, "plan", str(path), *SIZES)
    assert all(part in message for part in said), message


def test_plan_refuses_an_unknown_family_of_transformers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no_such_family"}))
    message = refused(capsys, "plan", f"hf:{tmp_path}", *SIZES)
    assert "no_such_family" in message


JOBS = {
    "no TOML": ("model = [", (), ("job.toml: not TOML",)),
    "no text": (b"\xff\xfe", (), ("job.toml: not text", "byte 0")),
    "no model": ("[plan]\nseq = 8\nglobal_batch = 2", (), ("job.toml: lacks model",)),
    "no batch": ('model = "tiny"\n[plan]\nseq = 8', (), ("lacks plan.global_batch",)),
    "key": ('model = "tiny"\n[run]\nsteeps = 3', (), ("run.steeps", "did you mean run.steps")),
    "table": (
        'model = "tiny"\n[trian]\nsteps = 3',
        (),
        ("unknown key trian", "model, plan, restarts, run"),
    ),
    "kind": ('model = "tiny"\n[plan]\nseq = "eight"', (), ("plan.seq is 'eight'", "whole number")),
    "kind in run": ('model = "tiny"\n[run]\nsteps = "ten"', (), ("run.steps is 'ten'", "number")),
    "bool": ('model = "tiny"\n[run]\nsteps = true', (), ("run.steps is True", "whole number")),
    "choice": ('model = "tiny"\n[run]\nschedule = "foo"', (), ("--schedule foo", "cosine")),
    "negative": ('model = "tiny"\n[run]\nclip = -1.0', (), ("--clip -1.0", "at least 0")),
    "cluster": ('model = "tiny"\n[plan]\ncluster = 3', (), ("plan.cluster is 3", "a string")),
    "model": ("model = 3", (), ("model is 3", "a string")),
    "restarts": ('model = "tiny"\nrestarts = -1', (), ("restarts is -1", "at least 0")),
    "extends itself": ('extends = "job.toml"', (), ("job.toml -> job.toml",)),
    "extends nothing": ('extends = "none.toml"', (), ("none.toml: No such file",)),
    "--set in no table": ('model = "tiny"', ("--set", "model.x=1"), ("model is 'tiny'", "table")),
    "dtype": ('model = "tiny"\n[plan]\ndtype = "f8"', (), ("plan.dtype is 'f8'", "f32, bf16")),
    "--set": ('model = "tiny"', ("--set", "steps"), ("--set steps", "a.b=c")),
    "--set of a key": ('model = "tiny"', ("--set", "run.stps=3"), ("did you mean run.steps",)),
}


@pytest.mark.parametrize("name", JOBS)
def test_train_refuses_a_job(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text, more, said = JOBS[name]
    path = tmp_path / "job.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    message = refused(capsys, "train", str(path), "--out", str(tmp_path / "run"), *more)
    assert all(part in message for part in said), message
    assert not (tmp_path / "run").exists()


PLACES = {
    "key below": ("[run]\nsteeps = 3", (), "base.toml: unknown key run.steeps"),
    "kind below": ("restarts = true", (), "base.toml: restarts is True"),
    "key of --set": ("", ("--set", "run.steeps=3"), "error: --set run.steeps=3: unknown key"),
    "kind of --set": ("", ("--set", "run.steps=ten"), "error: --set run.steps=ten: run.steps is"),
    "group": ("", ("--set", "run.group=x"), "did you mean run.groups"),
}


@pytest.mark.parametrize("name", PLACES)
def test_train_names_the_place_of_what_it_refuses(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    below, more, said = PLACES[name]
    job = tmp_path / "job.toml"
    job.write_text('extends = "base.toml"\nmodel = "tiny"\n[plan]\nseq = 8\nglobal_batch = 4\n')
    (tmp_path / "base.toml").write_text(below)
    message = refused(capsys, "train", str(job), "--out", str(tmp_path / "run"), *more)
    assert said in message and "job.toml" not in message, message


TEXTS = {
    "other text": (b"hello", ("it is no plan", "first line of a plan is 'meshwright plan v2'")),
    "a line on": (b"hello\nmeshwright plan v2\n", ("it is no plan",)),
    "version": (b"meshwright plan v1\n", ("'meshwright plan v1'", "'meshwright plan v2'", "again")),
    "nothing": (b"", ("it is empty", "'meshwright plan v2'")),
    "no text": (b"\xff\xfe", ("0xff",)),
    "cut short": (b"meshwright plan v2\nmodel: tiny\n", ("lacks",)),
}


@pytest.mark.parametrize("command", ["compile", "explain"])
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_no_plan_is_refused_with_its_name(
    name: str, command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data, said = TEXTS[name]
    path = tmp_path / "p.txt"
    path.write_bytes(data)
    message = refused(capsys, command, str(path))
    assert all(part in message for part in (str(path), *said)), message
    assert "hello" not in message, "a file that was taken for a plan may be private"


# Programs


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `one` and `two`: the tiny preset for one rank and for two."""
    folder = tmp_path_factory.mktemp("programs")
    for name, cluster in (("one", "cpu:1"), ("two", "cpu:2")):
        plan = str(folder / f"{name}.txt")
        assert main([*PLAN, "--cluster", cluster, "-o", plan]) == 0
        assert main(["compile", plan, "-o", str(folder / name)]) == 0
    return folder


def test_explain_says_that_a_plan_was_changed(
    programs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Its own numbers are of other decisions then."""
    assert main(["explain", str(programs / "one.txt")]) == 0
    assert "was changed" not in capsys.readouterr().out
    text = (programs / "one.txt").read_text()
    (tmp_path / "p.txt").write_text(text.replace("predicted_step_us ", "predicted_step_us 9"))
    assert main(["explain", str(tmp_path / "p.txt")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("note: the plan was changed") and "predicted_peak" not in said[:200]


def test_run_refuses_a_folder_without_a_program(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    message = refused(capsys, "run", str(tmp_path))
    assert str(tmp_path) in message and "main.py, layout.py" in message and "compile" in message


def test_run_refuses_a_port_in_use(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        message = refused(capsys, "run", str(programs / "two"), "--port", port)
    assert f"port {port} cannot be had (Address already in use)" in message


@pytest.mark.parametrize(
    ("name", "said"),
    [("nowhere", "no such folder"), ("", "manifest.json"), ("file", "it is a file")],
)
def test_run_refuses_an_absent_checkpoint_before_a_rank_starts(
    name: str,
    said: str,
    programs: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a rank was started"))
    (tmp_path / "file").write_text("")
    path = str(tmp_path / name)
    message = refused(capsys, "run", str(programs / "two"), "--resume", path)
    assert path in message and said in message and "auto" in message


def test_train_refuses_an_absent_checkpoint_before_planning(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job = tmp_path / "job.toml"
    job.write_text('model = "tiny"\n[plan]\nseq = 8\nglobal_batch = 4\n[run]\nresume = "gone"\n')
    assert main(["train", str(job)]) == 2
    told = capsys.readouterr()
    assert "--resume gone" in one_line(told.err) and "tracing" not in told.out


@pytest.mark.parametrize("command", ["run", "train"])
def test_a_tracker_that_is_missing_is_refused_before_anything_is_moved(
    command: str,
    programs: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    out, job = tmp_path / "out", tmp_path / "job.toml"
    for name in ("checkpoints/step_00000001", "program"):
        (out / name).mkdir(parents=True)
    for name in ("metrics.jsonl", "plan.txt"):
        (out / name).write_text("")
    before = sorted(out.rglob("*"))
    job.write_text('model = "tiny"\n[plan]\nseq = 8\nglobal_batch = 4\n[run]\ntrack = "wandb"\n')
    words = {"run": (str(programs / "two"), "--track", "wandb"), "train": (str(job),)}
    message = refused(capsys, command, *words[command], "--out", str(out))
    assert "--track wandb" in message and "pip install wandb" in message
    assert sorted(out.rglob("*")) == before


def test_compile_refuses_a_file_for_a_folder(
    programs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("")
    message = refused(
        capsys, "compile", str(programs / "one.txt"), "-o", str(tmp_path / "taken" / "program")
    )
    assert "taken" in message and "Not a directory" in message


def _started(folder: Path, *arguments: str, world: int | None = None) -> tuple[int, str]:
    """Exit code and error output of main.py, started as torchrun starts a rank."""
    env = {k: v for k, v in os.environ.items() if k not in ("WORLD_SIZE", "RANK")}
    if world is not None:
        env |= {"WORLD_SIZE": str(world), "RANK": "0", "LOCAL_RANK": "0"}
    command = [sys.executable, "main.py", "--no-compile", "--steps", "1", *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr


@pytest.mark.parametrize(("name", "planned", "world"), [("one", 1, 3), ("two", 2, None)])
def test_a_program_refuses_another_number_of_ranks(
    programs: Path, name: str, planned: int, world: int | None
) -> None:
    code, errors = _started(programs / name, world=world)
    message = one_line(errors)
    assert code == 2
    assert f"planned for {planned} ranks" in message and f"{world or 1} were launched" in message
    assert f"--nproc-per-node {planned}" in message


def test_two_ranks_refuse_data_with_one_line(
    programs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = str(programs / "two")
    message = refused(capfd, "run", program, "--data", "random:1000", "--no-compile")
    assert "vocabulary of 1000" in message


def test_help_of_train_says_what_keys_are_called(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "save_every for --save-every" in said and "--group is groups" in said


@pytest.mark.parametrize("command", ["plan", "compile", "run", "train", "explain"])
def test_help_of_each_command_says_what_it_does(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) > 8


@pytest.mark.parametrize(
    "given, said",
    [
        ({"seq": "16"}, "seq='16': give a whole number"),
        ({"seq": 16.0}, "seq=16.0: give a whole number"),
        ({"global_batch": True}, "global_batch=True: give a whole number"),
        ({"dtype": "fp64"}, "dtype='fp64': give f32, bf16 or f64"),
        ({"freeze": ["embed.*"]}, r"freeze=\['embed.*'\]: give one text .* as 'embed"),
    ],
)
def test_a_job_of_other_types_is_refused(given: dict, said: str) -> None:
    job = mw.Job(**{"seq": 16, "global_batch": 4} | given)
    with pytest.raises(mw.MeshwrightError, match=said):
        mw.plan("tiny", cluster="cpu:1", job=job)
    with pytest.raises(mw.MeshwrightError, match=said):
        mw.what_if("tiny", clusters=["cpu:1"], job=job)
