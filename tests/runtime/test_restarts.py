"""Runs that start again, by themselves or in a folder where an earlier one wrote."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from launching import CLI, RUN, TIMEOUT_S, after_step, losses, rank_pids, rows

from meshwright.cli import main
from meshwright.runtime.launch import launcher
from meshwright.runtime.training.options import run_options


@pytest.mark.long
def test_train_restarts_by_itself(tmp_path: Path) -> None:
    run, job = tmp_path / "run", tmp_path / "job.toml"
    job.write_text(
        'model = "tiny"\nrestarts = 1\n[plan]\ncluster = "cpu:2"\nseq = 32\nglobal_batch = 4\n'
        'pin = ["dp=2"]\n[run]\nsteps = 80\nsave_every = 5\nno_compile = true\neval_batches = 1\n'
    )
    command = [*CLI, "train", str(job), "--out", str(run)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        after_step(run, 8)
        os.kill(rank_pids(process)[0], signal.SIGKILL)
        _, said = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "restart 1 of 1" in said and "resumed" in said
    assert sorted(losses(run)) == list(range(80))


class Attempts:
    """Stands for the starts of a program: each ends as told, after saving the steps it is told."""

    def __init__(self, out: Path, *ends: tuple[int, list[int]]) -> None:
        self.out, self.ends, self.resumed = out, list(ends), []

    def __call__(self, folder: Path, options: dict, port: int, quiet: bool) -> launcher.Ended:
        self.resumed.append(options.get("resume"))
        code, saved = self.ends.pop(0)
        for step in saved:
            (self.out / "checkpoints" / f"step_{step:08d}").mkdir(parents=True)
        return launcher.Ended(code)


def test_a_restart_goes_on_from_what_the_run_saved_else_as_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of another run in the same folder is not what the run goes on from."""
    out = tmp_path / "run"
    (out / "checkpoints" / "step_00000002").mkdir(parents=True)
    given = {"resume": "/other/checkpoints/step_00000100", "out": str(out)}
    attempts = Attempts(out, (1, []), (3, [104]), (1, []), (0, [108]))
    monkeypatch.setattr(launcher, "_start_once", attempts)
    said: list[str] = []
    assert launcher.start_with_restarts(tmp_path, given, 5, say=said.append).code == 0
    assert attempts.resumed == [given["resume"]] * 2 + ["auto"] * 2
    assert "as it began" in said[0] and all("newest good" in text for text in said[1:])


def test_a_restart_that_is_refused_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of what was saved reads, say: it will not the next time either."""
    out = tmp_path / "run"
    attempts = Attempts(out, (1, [4]), (2, []))
    monkeypatch.setattr(launcher, "_start_once", attempts)
    ended = launcher.start_with_restarts(tmp_path, {"out": str(out)}, 5, say=lambda _: None)
    assert ended.code == 2
    assert attempts.resumed == [None, "auto"]


@pytest.mark.long
def test_a_new_run_keeps_what_an_earlier_one_left(program: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["run", str(program), *RUN, "--steps", "4", "--save-every", "2", "--out", str(run)]
    assert main(command) == 0
    first = losses(run)
    assert main([*command, "--seed", "1", "--keep", "1", "--fresh"]) == 0
    earlier = run / "earlier-001"
    assert losses(earlier) == first and losses(run) != first
    assert len(list((earlier / "checkpoints").glob("step_*"))) == 2
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step_00000004"]


def test_going_back_sets_later_checkpoints_aside(program: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["run", str(program), *RUN, "--save-every", "2", "--warmup", "0"]
    command += ["--out", str(run)]
    assert main([*command, "--steps", "6"]) == 0
    whole = losses(run)
    back = str(run / "checkpoints" / "step_00000002")
    assert main([*command, "--steps", "4", "--keep", "1", "--resume", back]) == 0
    assert losses(run) == {step: whole[step] for step in range(4)}
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step_00000004"]
    aside = sorted(p.name for p in (run / "earlier-001").iterdir())
    assert aside == ["step_00000004", "step_00000006"]


@pytest.mark.long
def test_going_on_from_another_runs_checkpoint_mixes_nothing(program: Path, tmp_path: Path) -> None:
    """What lies in the folder is of neither run: its log and checkpoints go aside."""
    command = ["run", str(program), *RUN, "--save-every", "2", "--warmup", "0"]
    for name, more in (("one", []), ("used", ["--lr", "0.1"])):
        assert main([*command, *more, "--steps", "4", "--out", str(tmp_path / name)]) == 0
    start_at = str(tmp_path / "one" / "checkpoints" / "step_00000002")
    run = tmp_path / "used"
    assert main([*command, "--steps", "4", "--resume", start_at, "--out", str(run)]) == 0
    whole = losses(tmp_path / "one")
    assert losses(run) == {step: whole[step] for step in (2, 3)}
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step_00000004"]
    assert len(list((run / "earlier-001" / "checkpoints").iterdir())) == 2


@pytest.mark.long
def test_a_job_in_a_used_folder_moves_what_was_there(tmp_path: Path) -> None:
    run, job = tmp_path / "run", tmp_path / "job.toml"
    job.write_text(
        'model = "tiny-llama"\n[plan]\ncluster = "cpu:1"\nseq = 32\nglobal_batch = 4\n'
        "[run]\nsteps = 2\nno_compile = true\neval_batches = 1\n"
    )
    assert main(["train", str(job), "--out", str(run)]) == 0
    first = (run / "plan.txt").read_text()
    words = ["train", str(job), "--out", str(run), "--set", "plan.seq=16"]
    (tmp_path / "short.bin").write_bytes(bytes(6))
    for data in (tmp_path / "absent.bin", tmp_path / "short.bin"):
        assert main([*words, "--set", f"run.data=file:{data}"]) == 2
        assert (run / "plan.txt").read_text() == first and not (run / "earlier-001").exists()
    assert main([*words, "--set", "plan.search=false", "--fresh"]) == 0
    earlier = run / "earlier-001"
    assert (earlier / "plan.txt").read_text() == first and len(losses(earlier)) == 2
    assert (earlier / "program" / "main.py").exists()
    assert f'out = "{run}"' in (earlier / "job.toml").read_text(), "as resolved"
    assert not (run / "plan.txt.report.txt").exists(), "of the plan before"


def test_a_job_goes_on_at_another_rate_where_that_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, job = tmp_path / "run", tmp_path / "job.toml"
    job.write_text(
        'model = "tiny-llama"\n[plan]\ncluster = "cpu:1"\nseq = 32\nglobal_batch = 4\n'
        "[run]\nsteps = 2\nno_compile = true\neval_batches = 1\n"
    )
    words = ["train", str(job), "--out", str(run)]
    assert main(words) == 0
    words += ["--set", "run.lr=1e-6", "--set", "run.steps=3"]
    assert main(words) == 2
    assert "--allow-change to go on so" in capsys.readouterr().err
    assert main([*words, "--allow-change"]) == 0
    assert sorted(losses(run)) == [0, 1, 2]


def test_a_run_without_save_every_saves_by_time_and_at_its_end(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks agree on the time, and what a longer run was told of warm-up stays."""
    monkeypatch.chdir(tmp_path)
    words = ["run", str(program), *RUN, "--log-every", "100"]
    assert main([*words, "--steps", "40", "--save-minutes", "1e-4"]) == 0
    steps = [int(path.name[-8:]) for path in sorted(Path("run/checkpoints").iterdir())]
    assert len(steps) == 3 and steps[-1] == 40 and steps[0] > 2, "keeps the newest"
    assert main([*words, "--steps", "4", "--out", "none", "--save-minutes", "0"]) == 0
    assert not Path("none/checkpoints").exists()
    assert run_options({"steps": 4000, "out": "run"}).warmup == 4
    assert run_options({"steps": 4000, "out": "none"}).warmup == 120


def test_a_file_for_a_folder_is_refused(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("")
    assert main(["run", str(program), *RUN, "--out", str(tmp_path / "taken")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --out") and "is a file" in error


def test_a_resume_goes_on_behind_the_same_tokens_where_the_batch_grows(
    program: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [*RUN, "--warmup", "0", "--save-every", "2", "--out"]
    assert main(["run", str(program), "--steps", "2", *words, str(tmp_path / "small")]) == 0
    plan, larger = str(tmp_path / "plan.txt"), str(tmp_path / "larger")
    sizes = ["--seq", "32", "--global-batch", "8", "--cluster", "cpu:1", "--no-search"]
    assert main(["plan", "tiny", *sizes, "-o", plan]) == 0
    assert main(["compile", plan, "-o", larger]) == 0
    start = str(tmp_path / "small" / "checkpoints" / "step_00000002")
    resume = ["run", larger, "--resume", start, *words, str(tmp_path / "large")]
    capfd.readouterr()
    assert main([*resume, "--steps", "1"]) == 2
    error = capfd.readouterr().err
    assert "has 2 steps behind it, --steps 1 counts" in error.splitlines()[-1]
    assert main([*resume, "--steps", "4"]) == 2
    assert "--allow-change to go on so" in capfd.readouterr().err
    assert main([*resume, "--steps", "4", "--allow-change", "--weight-decay", "0"]) == 0
    said = capfd.readouterr().err
    assert "global batch    4     8" in said and "--weight-decay  0.1   0.0" in said
    assert sorted(losses(tmp_path / "large")) == [2, 3]
    manifest = tmp_path / "large" / "checkpoints" / "step_00000004" / "manifest.json"
    state = json.loads(manifest.read_text())["state"]
    # 8 rows, then two batches of 8: as three batches of this size, one fewer than there were steps.
    assert (state["samples"], state["skipped"]) == (24, -1)


def test_no_row_is_left_out_or_counted_where_batches_change_twice(
    program: Path, tmp_path: Path
) -> None:
    """At rate 0 a loss says which rows were read: 12 in batches of 4, then 8, then 4 again."""
    words = [*RUN, "--warmup", "0", "--lr", "0", "--allow-change"]
    ends = {"small": ["--save-every", "3", "--steps", "6"], "large": ["--steps", "4"]}
    ends["again"] = ["--steps", "5"]
    first, larger, again = (tmp_path / name for name in ends)
    plan, program_8 = str(tmp_path / "plan.txt"), str(tmp_path / "larger_program")
    sizes = ["--seq", "32", "--global-batch", "8", "--cluster", "cpu:1", "--no-search"]
    assert main(["plan", "tiny", *sizes, "-o", plan]) == 0
    assert main(["compile", plan, "-o", program_8]) == 0
    assert main(["run", str(program), *words, *ends["small"], "--out", str(first)]) == 0
    start = ["--resume", str(first / "checkpoints" / "step_00000003"), *ends["large"]]
    assert main(["run", program_8, *words, *start, "--out", str(larger)]) == 0
    start = ["--resume", str(larger / "checkpoints" / "step_00000004"), *ends["again"]]
    assert main(["run", str(program), *words, *start, "--out", str(again)]) == 0
    plain = losses(first)
    assert len({round(loss, 5) for loss in plain.values()}) == 6
    assert losses(larger)[3] == pytest.approx((plain[3] + plain[4]) / 2, rel=1e-6)
    assert losses(again)[4] == pytest.approx(plain[5], rel=1e-6)
    seen = [rows(run)[0]["tokens_seen"] for run in (larger, again)]
    assert seen == [(3 * 4 + 8) * 32, (3 * 4 + 8 + 4) * 32]
