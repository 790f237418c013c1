"""Runs that describe themselves: run.json, log.txt, and the commands that read them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launching import RUN, losses

from meshwright import MeshwrightError, Program, resume
from meshwright.cli import main
from meshwright.runtime.training.interrupted import record_interrupted
from meshwright.runtime.training.opening import length
from meshwright.runtime.training.past_run import find_runs, program_hash, read_run
from meshwright.runtime.training.record import git_state
from meshwright.runtime.training.run_folder import hold, unsaved

WORDS = [*RUN, "--warmup", "0", "--save-every", "2"]


def test_a_run_describes_itself_and_goes_on_by_its_folder_alone(
    program: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    run, command = Path("runs/one"), ["run", str(program), *WORDS, "--steps", "2"]
    capfd.readouterr()
    assert main([*command, "--out", str(run)]) == 0
    shown = capfd.readouterr()
    assert shown.err == (run / "log.txt").read_text()
    assert shown.out.startswith(f"{run}: 2 steps, loss ")
    subjects = [line.partition(" ")[0] for line in shown.err.splitlines()[:9]]
    assert subjects == ["model", "device", "plan", "step", "run", "rate", "data", "saves", "out"]
    assert "predicted 0:00:0" in shown.err and "checkpoint every 2 steps" in shown.err
    said = read_run(run).said
    assert said["program"] == {"folder": str(program), "sha256": program_hash(program)}
    assert said["plan"]["text"] == (program / "plan.txt").read_text()
    assert said["plan"]["hash"] in (program / "layout.py").read_text()
    assert said["options"]["steps"] == 2 and said["options"]["optimizer"] == "adamw"
    assert said["identity"]["tokenizer"]["kind"] == "bytes" and said["folder"] == str(tmp_path)
    assert (said["state"], said["git"], len(said["starts"])) == ("finished", None, 1)
    assert set(said["versions"]) == {"python", "torch", "cuda", "meshwright"}

    assert main(["resume", str(run)]) == 2
    assert "has done 2 of 2 steps; give more by --steps" in capfd.readouterr().err
    first = losses(run)
    assert main(["resume", str(run), "--steps", "4", "--json"]) == 0
    (said,) = [line for line in capfd.readouterr().err.splitlines() if "going on from" in line]
    assert "s] tiny" in said and "finished after 2 of 2 steps: going on from step_0000000" in said
    assert losses(run).items() > first.items() and len(losses(run)) == 4
    assert [start["step"] for start in read_run(run).said["starts"]] == [0, 2]
    assert read_run(run).options["no_compile"], "a flag that was given once stays"


@pytest.mark.long
def test_the_same_command_again_goes_on_and_fresh_starts_anew(
    program: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, command = tmp_path / "run", ["run", str(program), *WORDS, "--steps", "2"]
    assert main([*command, "--out", str(run)]) == 0
    first = losses(run)
    capfd.readouterr()
    assert main([*command[:-1], "6", "--out", str(run)]) == 0
    assert "holds a run, which goes on; --fresh would start anew" in capfd.readouterr().err
    assert losses(run).items() > first.items() and len(losses(run)) == 6
    assert main([*command, "--lr", "0.5", "--fresh", "--out", str(run)]) == 0
    assert len(losses(run)) == 2 and len(losses(run / "earlier-001")) == 6
    assert read_run(run / "earlier-001").done == 6

    capfd.readouterr()
    assert main(["diff", str(run / "earlier-001"), str(run), "--json"]) == 0
    differ = json.loads(capfd.readouterr().out)["differ"]
    assert differ == {"--lr": [0.001, 0.5], "--steps": [6, 2]}


def test_a_resumed_run_says_where_it_goes_on_before_torch_is_imported(tmp_path: Path) -> None:
    """Nor does a refusal import it."""
    run = written(tmp_path / "run", "stopped")
    code = """if True:
        import sys
        from meshwright import MeshwrightError, resume
        def say(text):
            print(text)
            sys.exit("torch" in sys.modules)
        try:
            resume(sys.argv[1], say=say)
        except MeshwrightError as error:
            print(error)
            sys.exit("torch" in sys.modules)
    """
    command = [sys.executable, "-c", code, str(run)]
    assert "holds 0 checkpoints" in subprocess.run(command, stdout=-1, text=True, check=True).stdout
    (run / "checkpoints" / "step_00000002").mkdir(parents=True)
    said = subprocess.run(command, stdout=-1, text=True, check=True).stdout
    assert said.startswith(
        f"tiny in {run}, stopped after 3 of 10 steps: going on from step_00000002"
    )


def test_a_run_is_resumed_with_what_compile_returned(tmp_path: Path) -> None:
    run = written(tmp_path / "run", "stopped")
    (run / "checkpoints" / "step_00000002").mkdir(parents=True)
    with pytest.raises(MeshwrightError, match=f"no program in {tmp_path}/none; compile"):
        resume(run, program=Program(tmp_path / "none"))


def test_the_prediction_says_that_the_time_to_compile_comes_on_top() -> None:
    left: Any = SimpleNamespace(steps=5), SimpleNamespace(tokens=10)
    assert length(*left, 0, 2e6, 0) == "5 steps, 50 tokens; predicted 0:00:10 to the end"
    assert length(*left, 1, 2e6, 9).endswith(
        "0:00:08 to the end, plus the time to compile 9 functions"
    )
    assert length(*left, 0, None, 9) == "5 steps, 50 tokens"


def written(folder: Path, state: str = "running", steps: int = 3) -> Path:
    """A run's folder as one leaves it whose log has `steps` steps of 10."""
    folder.mkdir(parents=True)
    said = {
        "version": "meshwright run v1",
        "state": state,
        "ended": None if state == "running" else "2026-01-02T03:04:05+00:00",
        "starts": [
            {"time": "2026-01-01T00:00:00+00:00", "step": 0, "command": "meshwright run program"}
        ],
        "options": {"steps": 10},
        "identity": {"model": {"name": "tiny"}, "tokenizer": None},
        **dict.fromkeys(("program", "plan", "versions", "git"), {}),
    }
    (folder / "run.json").write_text(json.dumps(said))
    rows = [json.dumps({"step": step, "loss": 4.0 - step}) + "\n" for step in range(steps)]
    (folder / "metrics.jsonl").write_text("".join(rows))
    return folder


def test_a_second_ctrl_c_says_what_is_lost_and_how_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = written(Path("a run"), steps=7)
    assert record_interrupted(run, "train job.toml") == (
        "steps 0 to 6 are lost: nothing was saved; it starts anew with: train job.toml"
    )
    assert read_run(run).state == "interrupted" and read_run(run).said["ended"]
    assert (
        unsaved(run) == "the run in a run ended after 7 steps, none of them saved: starting anew; "
    )
    (run / "checkpoints" / "step_00000005").mkdir(parents=True)
    assert record_interrupted(run, "train job.toml") == (
        "steps 5 to 6 are lost; the run goes on from step 5 with: meshwright resume 'a run'"
    )
    assert unsaved(run) == ""
    assert "had not begun; start it again with: c" in record_interrupted(tmp_path, "c")
    # A start that had not begun its first step does not change how an earlier one ended.
    record_interrupted(written(tmp_path / "b", "stopped"), "c")
    assert read_run(tmp_path / "b").state == "stopped"


def test_runs_are_listed_with_their_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "deep" / "a", "finished", 10)
    saved = written(tmp_path / "b", "stopped") / "checkpoints"
    for step in ("00000001", "00000002", "00000003.part"):
        (saved / f"step_{step}").mkdir(parents=True)
    written(tmp_path / "c")
    written(tmp_path / "b" / "earlier-001")
    with hold(written(tmp_path / "d", steps=0)):
        assert main(["runs", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["runs"]
    assert {run["name"]: (run["state"], run["done_steps"], run["loss"]) for run in found} == {
        "a": ("finished", 10, -5.0),
        "b": ("stopped", 3, 2.0),
        "c": ("failed", 3, 2.0),
        "d": ("running", 0, None),
    }
    assert {run["name"]: run["kept_steps"] for run in found} == {"a": 10, "b": 2, "c": 0, "d": 0}
    assert found[0]["when"] == "2026-01-02T03:04:05+00:00"
    assert main(["runs", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["name", "model", "steps"] and len(lines) == 5
    steps = [re.split(r"  +", line)[2] for line in lines[1:]]
    assert steps == ["2 of 10, 1 more lost", "0 of 10, 3 more lost", "0 of 10", "10 of 10"], lines
    assert lines[-1].startswith("deep/a  tiny   10 of 10")


REFUSED = {
    "no run": (["resume", "."], "run.json: No such file or directory: not the folder of a run"),
    "no checkpoint": (["resume", "a"], "holds 0 checkpoints to go on from"),
    "no folder": (["runs", "nowhere"], "nowhere: there is no such folder"),
    "a plan and a run": (["diff", "plan.txt", "a"], "plan.txt is no folder, a is a folder"),
    "damage": (["runs", "torn"], "malformed: lacks starts, ended"),
    "another version": (["runs", "old"], "version 'v0', expected 'meshwright run v1'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_run_is_refused_in_a_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, said = REFUSED[name]
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "a")
    (written(tmp_path / "old") / "run.json").write_text('{"version": "v0"}')
    (written(tmp_path / "torn") / "run.json").write_text(
        '{"version": "meshwright run v1", "state": "running"}'
    )
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_row_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    run = written(tmp_path / "a")
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 3, "lo')
    assert [run.done for run in find_runs(tmp_path)] == [3]


def test_git_says_commit_and_changes(tmp_path: Path) -> None:
    assert git_state(str(tmp_path)) is None
    by = ("-c", "user.name=a", "-c", "user.email=a@b")
    assert os.spawnlp(os.P_WAIT, "git", "git", "init", "-q", str(tmp_path)) == 0
    words = ("git", "-C", str(tmp_path), *by, "commit", "-q", "--allow-empty", "-m", "one")
    assert os.spawnvp(os.P_WAIT, "git", words) == 0
    clean = git_state(str(tmp_path))
    (tmp_path / "new").write_text("")
    dirty = git_state(str(tmp_path))
    assert clean and dirty and clean["commit"] == dirty["commit"] and len(clean["commit"]) == 40
    assert (clean["dirty"], dirty["dirty"]) == (False, True)
