"""`meshwright run`: a program's ranks on this machine."""

import argparse
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .output import print_result
from .parsers import add_command

if TYPE_CHECKING:
    from meshwright.runtime.training.options import RunOptions


def add(commands: Any) -> None:
    """Add the command."""
    from meshwright.runtime.training.options import add_arguments

    parser = add_command(
        commands,
        "run",
        _run,
        "Run a program on this machine, one process a rank, and write its log to a run folder.",
    )
    parser.add_argument("program", help="a program's folder")
    add_arguments(parser)
    parser.add_argument("--port", type=int, default=0, help="rendezvous port; 0 takes a free one")


def _run(arguments: argparse.Namespace) -> int:
    from meshwright.runtime.training.options import run_options
    from meshwright.runtime.training.spans import program_tokens_per_step

    program = Path(arguments.program)
    options = run_options(vars(arguments), partial(program_tokens_per_step, program))
    return start(program, options, arguments)


def start(folder: Path, options: "RunOptions", arguments: argparse.Namespace) -> int:
    """Run a program on this machine; under --json print the last rows of its log."""
    from meshwright.runtime.launch.launcher import start_program
    from meshwright.runtime.metrics.step_log import last_rows

    code = start_program(folder, asdict(options), arguments.port, quiet=arguments.json)
    if arguments.json and code == 0:
        last = last_rows(Path(options.out) / "metrics.jsonl")
        print_result(arguments, {"run": options.out, "last": last}, "")
    return code
