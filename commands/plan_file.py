"""The cluster that a command prices a plan on."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.ir.plan import Plan
    from meshwright.planner.hardware.cluster import Cluster


def cluster_of(plan: "Plan", arguments: argparse.Namespace) -> "Cluster":
    """Return the cluster of --cluster, else the plan's own."""
    from meshwright.planner.hardware.cluster_file import parse_cluster

    return parse_cluster(arguments.cluster or plan.cluster)
