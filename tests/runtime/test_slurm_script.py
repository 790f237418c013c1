"""Scripts of jobs: what a user writes reaches Slurm and the ranks as it was written.

The oracle is bash: it runs the script, with stand-ins for srun and scontrol that keep what they
were given. tests/slurm asks a real Slurm.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sampling import mostly_long

from meshwright.api import slurm as api
from meshwright.api.errors import MeshwrightError
from meshwright.api.slurm import SlurmOptions, submit
from meshwright.cli import main
from meshwright.runtime.slurm import scheduler
from meshwright.runtime.slurm.attempts import Attempt, Attempts
from meshwright.runtime.slurm.scheduler import SlurmError
from meshwright.runtime.slurm.script import Demands, array_tasks, log_pattern, seconds

ODD = [
    "a b; touch caught & $(touch caught) `touch caught` | touch caught \u00fcn\u00ef \u2603",
    "two\nlines; touch caught\n'it' \"is\" \\ *? [a] {b,c} ~ !x #y %j \u2028 $HOME",
]
# Keeps its words, folder and environment, and leaves.
STAND_IN = f"""#!{sys.executable}
import json, os, sys
name, folder = os.path.basename(sys.argv[0]), os.environ["KEPT"]
kept = {{"words": sys.argv[1:], "cwd": os.getcwd(), "environment": dict(os.environ)}}
with open(f"{{folder}}/{{name}}.jsonl", "a") as file:
    file.write(json.dumps(kept) + "\\n")
"""
SCONTROL = """#!/bin/sh
echo "$*" >> "$KEPT/scontrol.txt"
case "$*" in
    "show hostnames"*) echo node1 ;;
    "show node node3"*) echo "NodeName=node3 NodeAddr=127.0.0.1 State=DOWN*" ;;
    "show node"*) echo "NodeName=node1 NodeAddr=127.0.0.1 State=ALLOCATED" ;;
    *) echo "JobId=7 JobState=RUNNING EndTime=Unknown" ;;
esac
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    sizes = ["--seq", "8", "--global-batch", "4", "--cluster", "cpu:2", "--no-search"]
    assert main(["plan", "tiny", *sizes, "-o", str(folder / "plan.txt")]) == 0
    assert main(["compile", str(folder / "plan.txt"), "-o", str(folder / "program")]) == 0
    return folder / "program"


class Bash:
    """Runs scripts of jobs, the commands of Slurm being stand-ins that keep what they are given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "stand-ins"
        self.folder.mkdir()
        for name, text in {"srun": STAND_IN, "module": STAND_IN, "scontrol": SCONTROL}.items():
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)

    def run(self, script: Path) -> "subprocess.CompletedProcess[str]":
        job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node1", "SLURMD_NODENAME": "node1"}
        path = f"{self.folder}:{os.environ['PATH']}"
        environment = {**os.environ, **job, "PATH": path, "KEPT": str(self.folder)}
        words = ["bash", str(script)]
        return subprocess.run(words, env=environment, timeout=60, capture_output=True, text=True)

    def given(self, name: str) -> dict:
        """Return what a command was given when it was called first."""
        return json.loads((self.folder / f"{name}.jsonl").read_text().splitlines()[0])


@pytest.mark.parametrize("odd", ODD)
def test_what_users_write_reaches_the_ranks_as_they_wrote_it(
    odd: str, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text is at once a folder, a file of data, a program, a module and values of the site."""
    bash, here = Bash(tmp_path), tmp_path / odd
    (here / "venv" / "bin").mkdir(parents=True)
    (here / "venv" / "bin" / "activate").write_text("export ACTIVE=yes\n")
    (here / "venv" / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (here / "venv" / "bin" / "python").chmod(0o755)
    monkeypatch.chdir(here)
    Path(odd).write_text("text " * 4000)
    site = {"modules": [odd], "venv": str(here / "venv"), "interface": odd, "scratch": odd}
    Path("site.toml").write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in site.items()))
    copied = shutil.copytree(program, here / f"program {odd}")
    options = {"data": f"file:{odd}", "steps": 1, "save_every": 2, "fast_every": 1}
    # A log's folder cannot hold the end of a line, as the head of a script names it.
    out = here / f"out {odd}" if odd.isprintable() else tmp_path / "out"
    options |= {"fast_dir": f"$HOME/{odd}", "out": str(out)}
    slurm = SlurmOptions(name="odd", site="site.toml", on_failure="stop")
    bash.run(submit(copied, slurm, options=options, dry_run=True).script)
    srun = bash.given("srun")
    words, seen = srun["words"], srun["environment"]
    value = {word: words[n + 1] for n, word in enumerate(words[:-1]) if word.startswith("--")}
    assert value["--data"] == f"file:{here / odd}"
    assert value["--out"] == str(out)
    assert value["--fast-dir"] == f"$HOME/{odd}"
    assert str(copied / "main.py") in words and srun["cwd"] == str(here)
    assert (seen["GLOO_SOCKET_IFNAME"], seen["MESHWRIGHT_SCRATCH"]) == (odd, odd)
    assert seen["ACTIVE"] == "yes" and bash.given("module")["words"] == ["load", odd]
    assert not list(tmp_path.rglob("caught"))


def test_a_job_file_reaches_the_planner_inside_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own path, and values of it, are odd; what plans is called with them whole."""
    odd = ODD[0]
    (tmp_path / odd).mkdir()
    monkeypatch.chdir(tmp_path / odd)
    plan = '[plan]\ncluster = "cpu:1"\nseq = 8\nglobal_batch = 4\n'
    job = Path(f"{odd}.toml")
    job.write_text(f'model = "tiny"\n{plan}[run]\nout = {json.dumps(odd)}\n')
    made = submit(job, SlurmOptions(plan_inside=True, name="odd", on_failure="stop"), dry_run=True)
    bash = Bash(tmp_path)
    planner = bash.folder / "planner"
    planner.write_text(STAND_IN)
    planner.chmod(0o755)
    # The supervisor is to call a stand-in where it would plan.
    text = made.script.read_text().replace("--plan-again '", f"--plan-again '{planner} ")
    made.script.write_text(text)
    bash.run(made.script)
    words = bash.given("planner")["words"]
    kept = tmp_path / odd / odd / "slurm" / "job.toml"
    assert words[words.index("train") + 1] == str(kept) and kept.is_file()
    assert words[words.index("--out") + 1] == str(tmp_path / odd / odd)
    assert not list(tmp_path.rglob("caught"))


def test_a_name_cannot_end_its_line_of_the_head(program: Path, tmp_path: Path) -> None:
    """Neither that of a folder, which a comment names, nor what sbatch would read."""
    copied = shutil.copytree(program, tmp_path / "a\ntouch caught\n#SBATCH --hold")
    out = str(tmp_path / "run")
    made = submit(copied, SlurmOptions(name="a"), options={"out": out}, dry_run=True)
    lines = made.text.partition("set -euo pipefail")[0].splitlines()
    assert "touch caught" not in lines and "#SBATCH --hold" not in lines
    assert "# a?touch caught?#SBATCH --hold on 1 nodes; written by meshwright submit" in lines
    for name in ("a\nb", "a\rb", "a\u2028b", "a\0b"):
        for field in ("job_name", "partition", "gres", "dependency"):
            with pytest.raises(SlurmError, match="cannot be printed"):
                Demands(**{"job_name": "a", "nodes": "1", field: name})


@pytest.mark.parametrize(
    ("time", "wanted"),
    [("30", 1800), ("30:15", 1815), ("1:00:00", 3600), ("1-0", 86400), ("1-2:30", 95400)],
)
def test_a_time_is_read_as_slurm_reads_it(time: str, wanted: int) -> None:
    assert seconds(time) == wanted


def test_tasks_of_an_array_have_a_folder_each() -> None:
    assert array_tasks("0-3") == [0, 1, 2, 3] and array_tasks("1,4,8-12:2%2") == [1, 4, 8, 10, 12]
    for text in ("3-", "a", "0-3;x", "", "5-2"):
        with pytest.raises(SlurmError, match="--array"):
            array_tasks(text)
    assert log_pattern(Path("/50%/seed-%a"), array=True) == "/50%%/seed-%a/job-%j.log"
    assert log_pattern(Path("/50%/seed-%a"), array=False) == "/50%%/seed-%%a/job-%j.log"
    with pytest.raises(SlurmError, match="backslash"):
        log_pattern(Path("/a\\b/slurm"), array=False)


@pytest.mark.parametrize("other", mostly_long(["", "node2", "node3"], "node3"))
def test_a_job_on_nodes_that_failed_twice_goes_to_others_or_ends(
    other: str, program: Path, tmp_path: Path
) -> None:
    """It would wait for ever for nodes that its partition does not have, or that are down."""
    bash, out = Bash(tmp_path), tmp_path / "run"
    made = submit(program, options={"out": str(out)}, dry_run=True)
    for number in (1, 2):
        times = {"began_s": 0.0, "ended_s": 1.0, "code": 1, "first": 0, "saved": 0}
        Attempts(out, "7").add(
            Attempt("7", 0, number, ("node1",), **times, failed={"node1": "why"}, then="restart")
        )
    (bash.folder / "sinfo").write_text(f"#!/bin/sh\nprintf 'node1\\n{other}\\n'\n")
    (bash.folder / "sinfo").chmod(0o755)
    done = bash.run(made.script)
    asked = (bash.folder / "scontrol.txt").read_text().splitlines()
    if other == "node2":
        assert done.returncode == 75 and "is queued again without node1" in done.stderr
        update = "update JobId=7 ExcNodeList=node1 NumTasks=1 NumNodes=1"
        assert asked[-2:] == ["requeue 7", update]
    else:
        assert done.returncode == 2 and "requeue 7" not in asked
        assert (
            "node1 failed twice, 0 other nodes of the partition are up, 1 are needed" in done.stderr
        )


def test_a_second_job_of_a_run_writes_nothing(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the script nor the program that the first one runs; one that waits for it may."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    out = tmp_path / "run"
    first = submit(program, options={"out": str(out)}, dry_run=True)
    api.remember("7", first)
    before = first.script.read_text()
    state = "RUNNING"
    monkeypatch.setattr(api, "_states", lambda: {"7": (state, "", "node1")})
    monkeypatch.setattr(scheduler, "states_of", lambda job: [state])
    changed = {"out": str(out), "steps": 7}
    with pytest.raises(MeshwrightError, match="job 7 is RUNNING and writes there, 1 job can"):
        submit(program, options=changed, dry_run=True)
    assert first.script.read_text() == before
    after = SlurmOptions(after=("7",))
    assert "--dependency=afterok:7" in submit(program, after, options=changed, dry_run=True).text
    state = "FAILED"
    assert "--steps 7" in submit(program, options=changed, dry_run=True).text


def test_tasks_that_would_share_a_folder_are_refused(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"out": str(tmp_path / "run")}
    with pytest.raises(MeshwrightError, match="2 tasks would write to one folder"):
        submit(program, SlurmOptions(array="0-1"), options=options, dry_run=True)
    words = ["--dry-run", "--array", "0-1", "--seed", "%a", "--out", str(tmp_path / "run-%a")]
    assert main(["submit", str(program), *words, "--steps", "3"]) == 0
    assert all((tmp_path / f"run-{n}" / "slurm").is_dir() for n in range(2))
    script = (tmp_path / "run-%a" / "job.sbatch").read_text()
    assert "--seed %a" in script and "--steps 3" in script
    assert main(["submit", str(program), *words, "--lr", "x%a"]) == 2
    assert "--lr x%a: 'x0' in the first task, give a number" in capsys.readouterr().err


def test_a_job_may_wait_for_an_array_that_writes_to_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run-%a"
    made_in = {f"7_{n}": (tmp_path / f"run-{n}").resolve() for n in (0, 1)}
    monkeypatch.setattr(api, "_known", lambda: iter(made_in.items()))
    monkeypatch.setattr(api, "_states", lambda: dict.fromkeys(made_in, ("RUNNING", "", "")))
    api._check_alone(out, SlurmOptions(array="0-1", after=("7",)))
    with pytest.raises(MeshwrightError, match="job 7_0 is RUNNING and writes there"):
        api._check_alone(out, SlurmOptions(array="0-1", after=("8",)))


def test_tasks_of_an_array_do_not_differ_in_their_plan() -> None:
    api._check_of_tasks(["run.seed=%a", "plan.seq=64"], "0-3")
    api._check_of_tasks(["plan.seq=%a"], "")
    with pytest.raises(MeshwrightError, match="--set plan.seq=1%a: the tasks of --array 0-3"):
        api._check_of_tasks(["plan.seq=1%a"], "0-3")
