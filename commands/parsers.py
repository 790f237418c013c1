"""Parts of parsers that several commands share."""

import argparse
from collections.abc import Callable
from typing import Any

from meshwright.runtime.launch.job import EFFORTS

from .parser import Parser

Run = Callable[[argparse.Namespace], int | None]


class Once(argparse.Action):
    """Keeps the value of an option, and refuses a second one."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Keep the value."""
        before = getattr(namespace, self.dest)
        if before != self.default:
            parser.error(f"{option_string} is given twice, {before} and {values}; give one")
        setattr(namespace, self.dest, values)


def add_command(commands: Any, name: str, run: Run, text: str) -> Parser:
    """Add a command's parser. text: its description, of which the first sentence is the help."""
    parser: Parser = commands.add_parser(name, help=text.split(". ")[0], description=text)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of bad input")
    parser.set_defaults(run=run, named=".".join(parser.prog.split()[1:]))
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


def add_effort(parser: argparse.ArgumentParser, default: str | None) -> None:
    """Add --effort of a command that searches; default: None where something else has one."""
    usual = default or "plan.effort of the job, else normal"
    parser.add_argument(
        "--effort",
        choices=EFFORTS,
        default=default,
        help="of the search: fast passes over what could gain less than 5%%, normal less than "
        f"0.5%%, best nothing, which takes the longest (default: {usual})",
    )


def add_processes(parser: argparse.ArgumentParser) -> None:
    """Add --processes of a command that searches."""
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="that search at once; the result is the same for any number (default: one a core, at "
        "most 4)",
    )
