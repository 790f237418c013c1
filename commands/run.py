"""`meshwright run`: a program's ranks on this machine."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from .parsers import add_command, given_options

if TYPE_CHECKING:
    from meshwright.api.results import RunResult


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
    from meshwright.api.runs import run

    options = given_options(arguments)
    result = run(arguments.program, port=arguments.port, quiet=arguments.json, **options)
    return print_last(result, arguments)


def print_last(result: "RunResult", arguments: argparse.Namespace) -> int:
    """Print the last rows of a run's log under --json; return its exit code."""
    if arguments.json and result.exit_code == 0:
        print(json.dumps({"run": str(result.folder), **result.last}))
    return result.exit_code
