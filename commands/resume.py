"""`meshwright resume`: a run goes on from its newest checkpoint."""

import argparse
from typing import Any

from .output import print_run, say_to
from .parsers import add_command, given_options

# What a start was told for itself alone; `resume` says where the run goes on.
_OF_A_START = ("out", "resume", "fresh")


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
    from meshwright.api.runs import resume

    # A flag that is not given is False, which is no wish to turn it off.
    given = {k: v for k, v in given_options(arguments).items() if v is not False}
    result = resume(
        arguments.run_folder,
        program=arguments.program,
        port=arguments.port,
        say=say_to(arguments),
        **given,
    )
    return print_run(arguments, result)
