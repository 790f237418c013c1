"""A run whose ranks were ended at once: what its folder says of it, and what is lost."""

import json
import shlex
from datetime import UTC, datetime
from pathlib import Path

from ..atomic_file import write_atomic
from ..checkpoint.manifest import complete, step_of
from .past_run import FILE, PastRun, RunError, read_run

STATE = "interrupted"


class RunInterrupted(KeyboardInterrupt):
    """A second Ctrl-C, which ended a run's ranks. Its text says what is lost."""


def record_interrupted(out: Path, command: str) -> str:
    """Write into run.json that the ranks were ended at once, and return what is lost of the run.

    command: that which started the ranks. Nothing is written where they had not begun the run.
    """
    try:
        run = read_run(out)
    except RunError:
        return f"nothing is lost: the run had not begun; start it again with: {command}"
    if run.said["state"] == "running":
        _mark(run)
    return _lost(run, command)


def _mark(run: PastRun) -> None:
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    said = {**run.said, "state": STATE, "ended": ended, "why": "a second Ctrl-C"}
    write_atomic(run.folder / FILE, json.dumps(said, indent=1) + "\n")


def _lost(run: PastRun, command: str) -> str:
    """Return which steps are lost, and how the run goes on."""
    saved = complete(run.folder / "checkpoints")
    if not saved:
        lost = _steps(run.said["starts"][-1]["step"], run.done - 1)
        return f"{lost}: nothing was saved; it starts anew with: {command}"
    first = step_of(saved[-1])
    return f"{_steps(first, run.done - 1)}; the run goes on from step {first} with: {_resume(run)}"


def _resume(run: PastRun) -> str:
    folder, here = run.folder.resolve(), Path.cwd()
    near = folder.relative_to(here) if folder.is_relative_to(here) else folder
    return f"meshwright resume {shlex.quote(str(near))}"


def _steps(first: int, last: int) -> str:
    if last < first:
        return "no step is lost"
    return f"step {last} is lost" if last == first else f"steps {first} to {last} are lost"
