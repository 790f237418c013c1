"""A plan's file, and the cluster it was made for."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.ir.plan import Plan
    from meshwright.planner.hardware.cluster import Cluster


def read_plan(path: str) -> "Plan":
    """Read a plan's file. Raises ParseError with the path."""
    from meshwright.ir.errors import ParseError
    from meshwright.ir.text.plan_text import parse_plan

    try:
        return parse_plan(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:  # of the text, or of its decoding
        raise ParseError(f"{path}: {error}") from None


def cluster_of(plan: "Plan", arguments: argparse.Namespace) -> "Cluster":
    """Return the cluster of --cluster, else the plan's own."""
    from meshwright.planner.hardware.cluster_file import parse_cluster

    return parse_cluster(arguments.cluster or plan.cluster)
