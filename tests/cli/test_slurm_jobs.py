"""Jobs of Slurm from the command line, with stand-ins for its commands; tests/slurm has it all."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

from meshwright.cli import main
from meshwright.commands import jobs as commands
from meshwright.runtime.control.address import Address, write_address
from meshwright.runtime.control.endpoint import Endpoint
from meshwright.runtime.host import host_name

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


def _replace(path: Path, text: str) -> None:
    """Write a file at once: a command may be reading it."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.replace(path)


class Slurm:
    """Jobs as the stand-ins tell of them. folder: of the stand-ins; runs lie below the test's."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.file, self.index, self.capfd = folder / "jobs", folder / "meshwright/jobs.jsonl", capfd
        self.file.touch()
        self.index.parent.mkdir()

    def has(self, *rows: str, out: Path | None = None) -> None:
        """Have jobs, each as `7|RUNNING|None|node1`; out: of those that were submitted here."""
        _replace(self.file, "".join(f"{row}\n" for row in rows))
        ids = [row.partition("|")[0] for row in rows] if out else []
        told = (json.dumps({"job": job, "out": str(out)}) + "\n" for job in ids)
        _replace(self.index, "".join(told))

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


def test_what_cannot_be_cancelled_is_said(slurm: Slurm) -> None:
    out = run_folder()
    slurm.has("5|COMPLETED|None|node1", "6_0|COMPLETED|None|", "6_1|RUNNING|None|node1", out=out)
    assert "999: no job of that name is known to Slurm" in slurm.refused("cancel", 999)
    assert "6_7: no job of that name" in slurm.refused("cancel", "6_7")
    assert slurm.refused("cancel", 5) == "job 5 ended before: COMPLETED"
    assert not slurm.cancelled
    assert slurm.said("cancel", 6)[0] == "job 6 is cancelled\n"
    slurm.has("7|COMPLETED|None|", "8|PENDING|Priority|", "9|FAILED|None|", out=out)
    assert slurm.said("cancel", "runs/web")[0] == "job 8 is cancelled\n"
    assert slurm.cancelled == ["6", "8"]
    Path("other").mkdir()
    assert "other: no job of that name" in slurm.refused("cancel", "other")


def test_a_job_that_was_submitted_by_hand_is_known_by_its_folder(slurm: Slurm) -> None:
    run_folder("7", "8")
    slurm.has("7|COMPLETED|None|", "8|RUNNING|None|node1")
    assert slurm.said("cancel", "runs/web")[0] == "job 8 is cancelled\n"
    assert slurm.said("status", "runs/web")[0].startswith("job 8: RUNNING node1\n")


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
    said = slurm.refused("submit", program, "--set", "run.no_compile=true")
    assert said.endswith("give --no-compile")
    said = slurm.refused("submit", program, "--set", "plan.seq=3")
    assert said.endswith("is a program; submit the job file")
    assert "submit the job file" in slurm.refused("submit", program, "--plan-inside")


def test_a_task_is_named_only_in_an_array(slurm: Slurm, program: Path) -> None:
    words = ("submit", program, "--dry-run", "--out", "run")
    way = "%a is the number of a task, and there is no --array; give a number"
    assert slurm.refused(*words, "--lr", "%a") == f"--lr %a: {way}"
    assert slurm.refused(*words, "--steps", "1%a") == f"--steps 1%a: {way}"


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


def test_the_log_of_a_waiting_job_is_awaited(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its folder, as a user writes it, in which an earlier job left a log."""
    monkeypatch.setattr(commands, "_EVERY_S", 0.01)
    monkeypatch.setattr(commands, "_ASK_S", 0.05)
    out = run_folder("6")
    slurm.has("6|COMPLETED|None|", "7|PENDING|Priority|", out=out)

    def go_on() -> None:
        time.sleep(0.3)
        (out / "slurm" / "job-7.log").write_text("log of 7\n")
        time.sleep(0.3)
        slurm.has("7|COMPLETED|None|", out=out)

    thread = threading.Thread(target=go_on)
    thread.start()
    printed, said = slurm.said("logs", "runs/web", "-f")
    thread.join()
    assert printed == "log of 7\n"
    assert said == "job 7 is PENDING (Priority); its log is awaited\nruns/web has ended\n"


def test_a_log_that_is_not_there_is_named_with_the_jobs_state(slurm: Slurm) -> None:
    out = run_folder("6")
    slurm.has("6|COMPLETED|None|", "7|PENDING|Priority|", out=out)
    assert slurm.said("logs", 6)[0] == slurm.said("logs", "runs/web")[0] == "log of 6\n"
    where = f"in {out}/slurm"
    waits = f"job 7 is PENDING (Priority), and has written no log {where}; -f awaits it"
    assert slurm.refused("logs", 7) == waits
    slurm.has("7|CANCELLED|Priority|", out=out)
    ended = f"job 7 is CANCELLED, and has written no log {where}"
    assert slurm.refused("logs", 7) == slurm.refused("logs", 7, "-f") == ended
    no_rank = f"job 7 is CANCELLED, and has begun no rank, --rank 1 has no log {where}"
    assert slurm.refused("logs", 7, "--rank", 1) == no_rank
    attempt = out / "slurm" / "attempt_001"
    attempt.mkdir()
    for rank in range(2):
        (attempt / f"rank_{rank:05d}.err").write_text(f"of rank {rank}\n")
    said = slurm.refused("logs", 7, "--rank", 7)
    assert said == f"--rank 7: attempt_001 in {out} has ranks 0 to 1; give one"
    assert slurm.said("logs", 7, "--rank", 1)[0] == "of rank 1\n"


def test_a_live_run_is_told_only_what_it_takes(slurm: Slurm) -> None:
    """Nothing is asked of the machine that it runs on; srun adds nothing to its answer."""
    said = slurm.refused("control", "save", "web", "lr=4")
    assert said == "save takes no values, lr=4 is for set: control set web lr=4"
    assert "lrr cannot be set in a live run; did you mean lr?" in slurm.refused(
        "control", "set", "web", "lrr=4"
    )
    assert "--steps 0: give 1 to 100" in slurm.refused("control", "profile", "web", "--steps", 0)
    assert "required: DO; see" in slurm.refused("control")
    out = run_folder()
    write_address(out, Address("node1", 1, "token", "7", 1))
    assert slurm.refused("control", "set", out, "lr=4") == "refused"


def test_it_is_said_where_a_window_of_steps_goes(slurm: Slurm) -> None:
    out, taken = run_folder(), []
    endpoint = Endpoint(dict, str, taken.append)
    write_address(out, Address(host_name(), endpoint.port, endpoint.token, "", os.getpid()))
    said = slurm.said("control", "profile", "runs/web")[0]
    assert said.endswith("profile is taken; it traces the next 3 steps, into runs/web/profile\n")
    said = slurm.said("control", "stragglers", "runs/web", "--steps", 5)[0]
    assert "the next 5 steps, into the run's log and runs/web/stragglers.json" in said
    slurm.said("control", "set", "runs/web", "lr=4")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(out)
        slurm.said("control", "set", "lr=4", "keep=2")
    endpoint.close()
    assert [command.do for command in taken] == ["profile", "stragglers", "set", "set"]
    assert taken[3].values == {"lr": "4", "keep": "2"}


def test_a_cancelled_job_waits_for_nothing(slurm: Slurm) -> None:
    slurm.has("7|CANCELLED|Resources|", out=run_folder())
    assert slurm.said("status", 7)[0].startswith("job 7: CANCELLED\n")
    slurm.has("7|PENDING|Resources|", out=Path("runs/web").absolute())
    assert slurm.said("status", "runs/web")[0].startswith("job 7: PENDING Resources\n")
