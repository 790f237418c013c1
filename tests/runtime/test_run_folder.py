"""One run at a time in a folder."""

import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.cli import main
from meshwright.runtime.training.program import ProgramError
from meshwright.runtime.training.run_folder import check_free, hold

HOLD = """
import sys, time
from pathlib import Path
from meshwright.runtime.training.run_folder import hold
held = hold(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_a_folder_that_a_run_writes_to_is_refused_until_it_ends(tmp_path: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        for ask in (check_free, hold):
            with pytest.raises(ProgramError, match=rf"process {other.pid}\); wait for it"):
                ask(tmp_path)
    finally:
        other.kill()
        other.wait()
    check_free(tmp_path)
    with hold(tmp_path):
        assert (tmp_path / "lock").read_text().strip().isdigit()


def test_run_says_who_is_there_and_leaves_its_folder_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, out = tmp_path / "program", tmp_path / "out"
    program.mkdir()
    (program / "main.py").write_text("")
    (program / "layout.py").write_text('MESH = {"pp": 1, "dp": 1, "tp": 1}\n')
    (out / "beats").mkdir(parents=True)
    with hold(out):
        words = ["run", str(program), "--data", "demo", "--steps", "1", "--out", str(out)]
        assert main(words) == 2
    assert "another run writes to" in capsys.readouterr().err
    assert (out / "beats").is_dir()
