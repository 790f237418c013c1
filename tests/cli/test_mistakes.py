"""Mistakes of users: each command line of tests/cli/mistakes is refused with the line below it.

A line that begins with `$` is refused before torch is imported, one with `%` may take it. SIZES
stands for --seq 8 --global-batch 4, HERE in an answer for the folder of the files.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mistaken_files import SIZES, write_files, write_results

from meshwright.cli import main

TABLES = sorted((Path(__file__).parent / "mistakes").glob("*.txt"))
AT_LEAST = 200
# Read from standard input: command lines. Printed: the first that imports torch.
WITHOUT_TORCH = """
import contextlib, io, json, sys
from meshwright.api import here
from meshwright.cli import main
here._DRIVERS = ()  # torch counts the cards of a machine that has some
for words in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        main(words)
    if "torch" in sys.modules:
        sys.exit(" ".join(words))
"""


def lines_of(table: Path) -> list[str]:
    """The command lines of a table, each with its mark."""
    return [line for line in table.read_text().splitlines() if line[:2] in ("$ ", "% ")]


def words_of(line: str) -> list[str]:
    return shlex.split(line[2:].replace("SIZES", shlex.join(SIZES)))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the files, which is the current one."""
    top = tmp_path_factory.mktemp("mistakes")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(top)
        patch.setattr(sys, "path", [*sys.path])
        # What Python keeps beside the files would be among what a folder is said to hold.
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        write_files(top)
        write_results(top)
        yield top


def _names(top: Path) -> set[str]:
    return {str(path.relative_to(top)) for path in top.rglob("*") if "__pycache__" not in str(path)}


def _answer(line: str, top: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """What a mistake is answered with, but for the error's mark."""
    capfd.readouterr()
    try:
        code: object = main(words_of(line))
    except SystemExit as end:
        code = end.code
    errors = capfd.readouterr().err
    said = [text for text in errors.splitlines() if not re.match(r"\[ *\d+\.\d s\] ", text)]
    assert code == 2, f"{line}: {errors}"
    assert len(said) == 1 and said[0].startswith("error: "), f"{line}: {errors}"
    return said[0].removeprefix("error: ").replace(str(top), "HERE")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.stem)
def test_each_mistake_is_answered_in_one_line(
    table: Path, here: Path, capfd: pytest.CaptureFixture[str], update_golden: bool
) -> None:
    """And nothing is left of it."""
    before = _names(here)
    got = [text for line in lines_of(table) for text in (line, f"  {_answer(line, here, capfd)}")]
    assert _names(here) == before
    if update_golden:
        table.write_text("\n".join(got) + "\n")
    assert got == table.read_text().splitlines()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="argparse of Python 3.12 takes it for -h")
def test_a_value_of_a_flag_is_refused(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = "-h/--help: ignored explicit argument '5'; see meshwright --help"
    assert _answer("$ -h5", here, capfd) == said


def test_what_needs_no_torch_is_refused_without_it(here: Path) -> None:
    """Its import takes two seconds."""
    light = [words_of(line) for table in TABLES for line in lines_of(table) if line[0] == "$"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        input=json.dumps(light),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"imports torch: {done.stderr}"


def test_there_are_many_mistakes_and_each_is_made_once() -> None:
    lines = [line[2:] for table in TABLES for line in lines_of(table)]
    assert len(lines) >= AT_LEAST and len(set(lines)) == len(lines)
