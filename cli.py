"""The command line (`meshwright --help` lists the commands): parser, exit codes and messages."""

import gc
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from meshwright import __version__
from meshwright.api.errors import RunFailedError
from meshwright.commands import (
    clusters,
    compile,
    completion,
    control,
    data,
    diff,
    explain,
    generate,
    jobs,
    models,
    plan,
    plot,
    preflight,
    probe,
    resume,
    run,
    runs,
    status,
    submit,
    train,
    weights,
    what_if,
)
from meshwright.commands.parser import Parser
from meshwright.commands.process_end import end_process
from meshwright.runtime.given import check_named
from meshwright.runtime.metrics.colour import painted

# In the order of the help.
COMMANDS = (
    plan, compile, run, train, submit, jobs, status, control, resume, runs, explain, diff, what_if,
    weights, generate, plot, data, models, clusters, probe, preflight, completion,
)  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code.

    0 on success, 2 on bad input with one message and no traceback, 130 and 143 when Ctrl-C or
    SIGTERM ended it.
    """
    arguments = make_parser().parse_args(argv)
    # Captures and searches make millions of objects that live; looking through them takes 8%.
    gc.set_threshold(200_000, 20, 20)
    try:
        with _ended_by_sigterm():
            _check_named(arguments)
            return arguments.run(arguments) or 0
    except RunFailedError as error:
        print(error.said, file=sys.stderr)
        return error.code
    except BrokenPipeError:  # who read the output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, OSError) as error:
        if arguments.debug:
            raise
        print(painted("error:", "error", sys.stderr), _one_message(error), file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        lost = str(interrupt) or "nothing was left half-written"
        print(f"interrupted; {lost}", file=sys.stderr)
        return 143 if isinstance(interrupt, _Terminated) else 130


def _check_named(arguments: Namespace) -> None:
    """Raise GivenError for an output that is given without a name."""
    for option, name in (("--out", "out"), ("-o", "output")):
        if getattr(arguments, name, None) == "":
            check_named(option, "")


def entry() -> NoReturn:
    """Run a command as a process of its own, which ends with the exit code."""
    end_process(main())


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does: it removes what is half-written."""


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    def end(*_: object) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _one_message(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def make_parser() -> Parser:
    parser = Parser(
        prog="meshwright",
        description="A compiler for training runs: plan a model for a cluster, write one readable "
        "PyTorch program per stage, run it.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return parser


if __name__ == "__main__":
    entry()
