"""Jobs of Slurm from the command line, with stand-ins for its commands; tests/slurm has it all."""

import json
import os
from pathlib import Path

import pytest

from meshwright.cli import main

JOB = 'model = "tiny"\n[plan]\ncluster = "cpu:1"\nseq = 8\nglobal_batch = 4\nsearch = false\n'
STAND_INS = {
    "squeue": 'cat "$JOBS"',
    "scontrol": 'found=$(sed -nE "s/^$3(_[0-9]+)?[|]([A-Z]+)[|].*/JobState=\\2/p" "$JOBS")\n'
    'if [ -z "$found" ]; then echo "error: Invalid job id specified" >&2; exit 1; fi\n'
    'echo "$found"',
    "sbatch": 'if [ -n "$REFUSED" ]; then echo "sbatch: error: $REFUSED" >&2; exit 1; fi\necho 7',
    "scancel": 'echo "$*" >> "$JOBS.cancelled"',
    "srun": 'echo "error: refused" >&2\n'
    'echo "srun: error: node1: task 0: Exited with exit code 2" >&2\nexit 2',
}


class Slurm:
    """Jobs as the stand-ins tell of them. folder: of the stand-ins; runs lie below the test's."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.file, self.index, self.capfd = folder / "jobs", folder / "meshwright/jobs.jsonl", capfd
        self.file.touch()
        self.index.parent.mkdir()

    def has(self, *rows: str, out: Path | None = None) -> None:
        """Have jobs, each as `7|RUNNING|None|node1`; out: of those that were submitted here."""
        self.file.write_text("".join(f"{row}\n" for row in rows))
        ids = [row.partition("|")[0] for row in rows] if out else []
        told = (json.dumps({"job": job, "out": str(out)}) + "\n" for job in ids)
        self.index.write_text("".join(told))

    def refused(self, *words: object) -> str:
        """Return the one line by which a command is refused."""
        self.capfd.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", ["meshwright"])
            try:
                code: object = main([*map(str, words)])
            except SystemExit as end:
                code = end.code
        said = self.capfd.readouterr().err
        assert code == 2 and said.startswith("error: ") and said.count("\n") == 1, said
        return said.removeprefix("error: ").rstrip()

    def said(self, *words: object) -> tuple[str, str]:
        """Return what a command prints, on standard output and error."""
        self.capfd.readouterr()
        assert main([*map(str, words)]) == 0, self.capfd.readouterr().err
        printed = self.capfd.readouterr()
        return printed.out, printed.err

    @property
    def cancelled(self) -> list[str]:
        path = self.file.with_suffix(".cancelled")
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Slurm:
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in STAND_INS.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("JOBS", str(folder / "jobs"))
    monkeypatch.setenv("REFUSED", "")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.toml").write_text(JOB)
    return Slurm(folder, capfd)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    (folder / "t.toml").write_text(JOB)
    words = ["--prepare", "--out", str(folder / "made")]
    assert main(["train", str(folder / "t.toml"), *words]) == 0
    return folder / "made" / "program"


def run_folder(*logs: str) -> Path:
    """Make the folder of a run with logs of jobs, the last the newest."""
    out = Path("runs/web").absolute()
    (out / "slurm").mkdir(parents=True)
    for number, job in enumerate(logs):
        path = out / "slurm" / f"job-{job}.log"
        path.write_text(f"log of {job}\n")
        os.utime(path, (number + 1, number + 1))
    return out


def test_an_earlier_run_is_moved_aside_only_by_a_job_that_is_submitted(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is only written, or refused by sbatch, leaves plan and log where they are."""
    out = Path("run")
    slurm.said("train", "t.toml", "--prepare", "--out", out)
    (out / "log.txt").write_text("earlier")
    plan = (out / "plan.txt").read_text()
    words = ("submit", "t.toml", "--set", "plan.seq=16", "--fresh", "--out", out)
    printed, _ = slurm.said(*words, "--dry-run")
    assert "holds the earlier job as before; the same command without --dry-run" in printed
    monkeypatch.setenv("REFUSED", "invalid partition specified: nope")
    assert "invalid partition specified: nope" in slurm.refused(*words, "--partition", "nope")
    assert (out / "plan.txt").read_text() == plan and (out / "log.txt").read_text() == "earlier"
    assert not list(out.glob("earlier-*"))
    monkeypatch.setenv("REFUSED", "")
    _, printed = slurm.said(*words)
    assert "what an earlier job left in run is now in run/earlier-001" in printed
    assert (out / "earlier-001" / "log.txt").read_text() == "earlier"
    assert (out / "plan.txt").read_text() != plan and not (out / "log.txt").exists()
    # Planned anew on other nodes, the job goes on from what it has saved.
    assert "--set run.fresh=false" in (out / "job.sbatch").read_text()


def test_a_program_starts_anew_in_a_folder_that_holds_a_run(slurm: Slurm, program: Path) -> None:
    """The supervisor goes on from any checkpoint that it finds there."""
    out = run_folder()
    (out / "log.txt").write_text("earlier")
    slurm.said("submit", program, "--fresh", "--out", out, "--dry-run")
    assert (out / "log.txt").exists()
    slurm.said("submit", program, "--fresh", "--out", out)
    assert not (out / "log.txt").exists() and (out / "earlier-001" / "log.txt").exists()


def test_train_slurm_takes_its_own_options(slurm: Slurm) -> None:
    words = ("train", "t.toml", "--slurm", "--prepare", "--out", "run")
    printed, shown = slurm.said(*words, "--fresh", "--allow-change", "--effort", "fast")
    text = Path("run/job.sbatch").read_text()
    assert text in shown and "--fresh" in text and "--allow-change" in text
    assert 'effort = "fast"' in Path("run/slurm/job.toml").read_text()
    assert "run/job.sbatch; status, logs and control know that job by its folder, run" in printed
    assert "--nodes 0: give a number from 1 on" in slurm.refused(*words, "--nodes", 0)
    assert "give it to meshwright submit" in slurm.refused(*words, "--time", "01:00:00")


def test_a_program_refuses_what_a_job_file_takes(slurm: Slurm, program: Path) -> None:
    said = slurm.refused("submit", program, "--set", "run.save_every=3")
    assert said.endswith(f"{program} is a program; give --save-every 3")
    assert said.startswith("--set run.save_every=3: --set changes a job file, ")
    said = slurm.refused("submit", program, "--set", "plan.seq=3")
    assert said.endswith("is a program; submit the job file")
    assert "submit the job file" in slurm.refused("submit", program, "--plan-inside")


def test_a_job_waits_for_one_that_is_there(slurm: Slurm, program: Path) -> None:
    out = run_folder()
    slurm.has("7|RUNNING|None|node1", "8|FAILED|None|", "9|COMPLETED|None|", out=out)
    words = ("submit", program, "--dry-run", "--out", "other", "--after")
    assert "--after 999: no job of that name is known to Slurm" in slurm.refused(*words, 999)
    assert "--after 8: job 8 ended before: FAILED, a job" in slurm.refused(*words, 8)
    assert "--dependency=afterok:9\n" in slurm.said(*words, 9)[1]
    assert "--dependency=afterok:7\n" in slurm.said(*words, "runs/web")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--restarts -1", "--restarts -1: give a number of at least 0"),
        ("--spare -1", "--spare -1: give a number of at least 0"),
        ("--backoff -3", "--backoff -3.0: give a number of at least 0"),
        ("--backoff nan", "--backoff nan: give a number of at least 0"),
        (
            "--stop-before 7200 --time 1:00:00",
            "--stop-before 7200 leaves nothing of the job's time, --time 1:00:00 (3600 s); give "
            "fewer seconds than 3600",
        ),
        ("--nodes two", "--nodes two: give a number from 1 on, or least-most as 2-4"),
        ("--nodes 0", "--nodes 0: give a number from 1 on, or least-most as 2-4"),
        ("--nodes 3-2", "--nodes 3-2: 3 is more than 2; give 2-3"),
        (
            "--nodes 2 --spare 2",
            "--spare 2 of --nodes 2 leaves 0 to run on; give --spare 1 or less",
        ),
        (
            "--spare 1 --nodes 1",
            "--spare 1 of --nodes 1 leaves 0 to run on; give --spare 0 or less",
        ),
        ("--time soon", "--time soon: write HOURS:MINUTES:SECONDS or DAYS-HOURS, as 12:00:00"),
        ("--site none.toml", "--site none.toml: No such file or directory"),
        ("--site t.toml", "t.toml: unknown key 'model'; did you mean modules; keys: partition, "),
        ("--lr abc", "--lr abc: give a number, such as 0.001; see "),
        ("--steps abc", "--steps: 'abc': give steps as a whole number, or tokens as "),
    ],
)
def test_bad_numbers_are_refused_before_anything_is_planned(
    words: str, said: str, slurm: Slurm
) -> None:
    assert slurm.refused("submit", "t.toml", "--out", "run", *words.split()).startswith(said)
    assert not Path("run").exists()
