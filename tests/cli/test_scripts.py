"""launch.sh, with a stand-in for torchrun, and the head of job.sbatch; tests/slurm runs that."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.cli import main

# Says how it was started.
TORCHRUN = f"""#!{sys.executable}
import os, sys
from pathlib import Path
Path(os.environ["SAID"]).write_text("|".join([os.getcwd(), *sys.argv[1:]]))
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
    """Where the stand-in is found."""
    path = tmp_path / "bin" / "torchrun"
    path.parent.mkdir()
    path.write_text(TORCHRUN)
    path.chmod(0o755)
    said = {"SAID": str(tmp_path / "said")}
    return {**os.environ, **said, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}


def test_launch_takes_paths_from_where_it_is_called(
    program: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    words = ["bash", str(program / "launch.sh"), "--data", "file:a b.bin", "--out", "run"]
    subprocess.run(words, cwd=tmp_path, env=environment, check=True, timeout=60)
    folder, *given = (tmp_path / "said").read_text().split("|")
    assert folder == str(tmp_path)
    assert given[-5:] == [f"{program}/main.py", *words[2:]]
    assert given[given.index("--nproc-per-node") + 1] == "2"


def test_a_job_names_its_time_its_log_and_its_way_on(program: Path) -> None:
    lines = (program / "job.sbatch").read_text().splitlines()
    options = [line for line in lines if line.startswith("#SBATCH")]
    wanted = ("--time=24:00:00", "--output=%x-%j.out", "--signal=B:USR1@600", "--requeue")
    assert all(f"#SBATCH {option}" in options for option in wanted)
    assert not any("gpus" in option for option in options), "of CPU ranks"
