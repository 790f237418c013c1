"""launch.sh and job.sbatch, started with stand-ins for torchrun and Slurm."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshwright.cli import main

# Says how it was started; asked to, waits for the signal that asks ranks to stop, as one saves.
TORCHRUN = f"""#!{sys.executable}
import os, signal, sys
from pathlib import Path
def stop(*_):
    sys.exit(75)
deaf = signal.signal(signal.SIGUSR1, stop) == signal.SIG_IGN
Path(os.environ["SAID"]).write_text("|".join([os.getcwd(), str(deaf), *sys.argv[1:]]))
if "--wait" in sys.argv:
    signal.pause()
"""
# Passes the signal on to its task.
SRUN = """#!/usr/bin/env bash
"$@" &
task=$!
trap 'kill -USR1 "$task"' USR1
wait "$task" || wait "$task"
"""
SCONTROL = """#!/usr/bin/env bash
if [ "$1" = requeue ]; then echo "$2" > "$REQUEUED"; else echo node-1; fi
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny preset for two CPU ranks, in a folder whose name has a blank."""
    folder = tmp_path_factory.mktemp("a plan")
    sizes = ["--seq", "8", "--global-batch", "4", "--cluster", "cpu:2", "--no-search"]
    assert main(["plan", "tiny", *sizes, "-o", str(folder / "plan.txt")]) == 0
    assert main(["compile", str(folder / "plan.txt"), "-o", str(folder / "program")]) == 0
    return folder / "program"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Where the stand-ins are found."""
    for name, text in (("torchrun", TORCHRUN), ("srun", SRUN), ("scontrol", SCONTROL)):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "node-1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NODEID": "0"}
    said = {"SAID": str(tmp_path / "said"), "REQUEUED": str(tmp_path / "requeued")}
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return {**os.environ, **slurm, **said, "SLURM_JOB_ID": "17", "PATH": path}


def test_launch_takes_paths_from_where_it_is_called(
    program: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    words = ["bash", str(program / "launch.sh"), "--data", "file:a b.bin", "--out", "run"]
    subprocess.run(words, cwd=tmp_path, env=environment, check=True, timeout=60)
    folder, _, *given = (tmp_path / "said").read_text().split("|")
    assert folder == str(tmp_path)
    assert given[-5:] == [f"{program}/main.py", *words[2:]]
    assert given[given.index("--nproc-per-node") + 1] == "2"


def test_a_job_whose_time_ends_saves_and_is_queued_again(
    program: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """The batch shell alone gets the signal; torchrun, which would die of it, does not heed it."""
    words = ["bash", str(program / "job.sbatch"), "--wait"]
    job = subprocess.Popen(words, cwd=program, env=environment)
    _wait_for(tmp_path / "said")
    job.send_signal(signal.SIGUSR1)
    assert job.wait(60) == 75
    assert (tmp_path / "requeued").read_text() == "17\n"
    assert (tmp_path / "said").read_text().split("|")[1] == "True"


def test_a_job_that_starts_again_resumes(
    program: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    words = ["bash", str(program / "job.sbatch"), "--resume", "here"]
    again = {**environment, "SLURM_RESTART_COUNT": "1"}
    for given, last in ((environment, "here"), (again, "auto")):
        subprocess.run(words, cwd=program, env=given, check=True, timeout=60)
        assert (tmp_path / "said").read_text().split("|")[-2:] == ["--resume", last]
    assert not (tmp_path / "requeued").exists()


def test_a_job_names_its_time_its_log_and_its_way_on(program: Path) -> None:
    lines = (program / "job.sbatch").read_text().splitlines()
    options = [line for line in lines if line.startswith("#SBATCH")]
    wanted = ("--time=24:00:00", "--output=%x-%j.out", "--signal=B:USR1@600", "--requeue")
    assert all(f"#SBATCH {option}" in options for option in wanted)
    assert not any("gpus" in option for option in options), "of CPU ranks"


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.02)
