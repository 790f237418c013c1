"""Settings for every test of this room, and a small program to start."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import CLI, RUN

from meshwright.cli import main


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two data-parallel ranks of the tiny preset."""
    folder = tmp_path_factory.mktemp("program")
    sizes = ["--seq", "32", "--global-batch", "4", "--cluster", "cpu:2", "--pin", "dp=2"]
    sizes += ["--pin", "zero=1"]  # both have something to write into a checkpoint
    assert main(["plan", "tiny", *sizes, "-o", str(folder / "plan.txt")]) == 0
    assert main(["compile", str(folder / "plan.txt"), "-o", str(folder / "program")]) == 0
    return folder / "program"


QUIET = ("--log-every", "100")


@pytest.fixture
def started(program: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts `meshwright run` into tmp_path/run in the background; none outlives the test."""
    processes = []

    # The pipe holds 64 KiB, and nobody reads it until the run ends.
    def begin(*options: str) -> subprocess.Popen:
        command = [
            *CLI,
            "run",
            str(program),
            *RUN,
            *QUIET,
            *options,
            "--out",
            str(tmp_path / "run"),
        ]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
