"""Parts of parsers that several commands share."""

import argparse
from collections.abc import Callable
from typing import Any

Run = Callable[[argparse.Namespace], int | None]


def add_command(commands: Any, name: str, run: Run, text: str) -> argparse.ArgumentParser:
    """Add a command's parser. text: its description, of which the first sentence is the help."""
    parser = commands.add_parser(name, help=text.split(". ")[0], description=text)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of bad input")
    parser.set_defaults(run=run)
    return parser


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a run that were given, by name; flags are always there."""
    from meshwright.runtime.training.options import option_names

    given = {name: getattr(arguments, name, None) for name in option_names()}
    return {name: value for name, value in given.items() if value is not None}


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add --cluster of a command that reads a plan."""
    parser.add_argument(
        "--cluster",
        metavar="C",
        help="the cluster to price on, by name or TOML file (default: the plan's own)",
    )
