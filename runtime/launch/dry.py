"""Start a program's dry run, in a process of its own: its runtime is the one that it holds."""

import json
import subprocess
import sys
from pathlib import Path

from ..dry.command import DRY
from ..dry.found import DryRank, DryRun
from .ranks import Place, environment_of
from .words import option_words


class DryRunFailedError(ValueError):
    """A program that a dry run refuses."""


def start_dry(folder: Path, options: dict[str, object]) -> DryRun:
    """Run the program in `folder` dry; its progress goes to stderr.

    Raises DryRunFailedError with what the program's process says.
    """
    words = [sys.executable, "main.py", DRY, *option_words(options)]
    with subprocess.Popen(
        words,
        cwd=folder,
        env=environment_of(0, Place(0, 1, 1)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        last = ""
        for line in process.stderr:
            last = line.strip() or last
            if line.startswith("dry run: "):
                print(line, end="", file=sys.stderr, flush=True)
        found = process.stdout.read()
    if process.returncode:
        raise DryRunFailedError(last.removeprefix("error: "))
    read = json.loads(found)
    return DryRun(**{**read, "ranks": tuple(DryRank(**rank) for rank in read["ranks"])})
