"""`meshwright run`: a program's ranks on this machine."""

import argparse
from typing import Any

from .output import print_run
from .parsers import add_command, given_options


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
    result = run(arguments.program, port=arguments.port, **options)
    return print_run(arguments, result)
