"""`meshwright resume`: a run goes on from its newest checkpoint."""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .parsers import add_command
from .run import start

if TYPE_CHECKING:
    from meshwright.runtime.training.past_run import PastRun

# What a start was told for itself alone; `resume` says where the run goes on.
_OF_A_START = ("out", "resume", "fresh")
_NOT_KEPT = {"resume": "auto", "fresh": False, "allow_change": False, "weights": ""}


def add(commands: Any) -> None:
    """Add the command."""
    from meshwright.runtime.training.options import add_arguments

    parser = add_command(
        commands,
        "resume",
        _run,
        "Go on with a run from its newest checkpoint. Program, data and options are those that its "
        "run.json names; options given here override them.",
    )
    parser.add_argument("run_folder", metavar="RUN", help="a run's folder")
    parser.add_argument("--program", help="a program's folder in place of the run's own")
    add_arguments(parser, without=_OF_A_START)
    parser.add_argument("--port", type=int, default=0, help="rendezvous port; 0 takes a free one")


def _run(arguments: argparse.Namespace) -> int:
    from meshwright.runtime.training.options import run_options
    from meshwright.runtime.training.past_run import read_run
    from meshwright.runtime.training.spans import program_tokens_per_step

    run = read_run(Path(arguments.run_folder))
    # A flag that is not given is False, which is no wish to turn it off.
    given = {k: v for k, v in vars(arguments).items() if v not in (None, False)}
    done = _steps_saved(run)
    program = _program(run, arguments.program)
    options = run_options(
        {**run.options, **_NOT_KEPT, "out": str(run.folder), **given},
        partial(program_tokens_per_step, program),
    )
    if run.state == "finished" and options.steps == done:
        raise ValueError(f"{run.folder} has done {done} of {done} steps; give more by --steps")
    return start(program, options, arguments)


def _steps_saved(run: "PastRun") -> int:
    """Return the steps of the newest checkpoint. Raises ValueError where there is none."""
    from meshwright.runtime.checkpoint.manifest import complete, step_of

    folder = run.folder / "checkpoints"
    saved = complete(folder)
    if not saved:
        raise ValueError(
            f"{folder} holds 0 checkpoints to go on from (--save-every makes some); the run was "
            f"started by: {run.said['starts'][0]['command']}"
        )
    return step_of(saved[-1])


def _program(run: "PastRun", given: str | None) -> Path:
    """Return the program's folder: the one given, else the one in the run's own folder, else where
    it lay; say where it is not what the run began with."""
    from meshwright.runtime.training.past_run import program_hash

    known = run.said["program"]
    places = [Path(given)] if given else [run.folder / "program", Path(known["folder"])]
    found = next((path for path in places if (path / "main.py").is_file()), None)
    if found is None:
        raise ValueError(
            f"no program in {' or '.join(map(str, places))}; compile {run.folder}'s plan again, "
            "and give its folder by --program"
        )
    if program_hash(found) != known["sha256"]:
        print(f"{found} is not the program that the run began with", file=sys.stderr)
    return found
