"""`meshwright diff`: two plans side by side."""

import argparse
from typing import Any

from .output import print_result
from .parsers import add_cluster, add_command
from .plan_file import cluster_of, read_plan


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "diff",
        _run,
        "Compare two plans of one model. Prints the decisions that differ and what each is worth "
        "in step time and peak memory.",
    )
    parser.add_argument("first", help="a plan's file")
    parser.add_argument("second", help="a plan's file")
    add_cluster(parser)


def _run(arguments: argparse.Namespace) -> None:
    from meshwright.planner.report.diff import diff

    first, second = read_plan(arguments.first), read_plan(arguments.second)
    text = diff(first, second, cluster_of(first, arguments))
    print_result(arguments, {"text": text}, text)
