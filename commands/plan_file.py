"""The cluster that a command prices a plan on."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.ir.plan import Plan
    from meshwright.planner.hardware.cluster import Cluster


def cluster_of(plan: "Plan", arguments: argparse.Namespace) -> "Cluster":
    """Return the cluster of --cluster, else the plan's own."""
    from meshwright.planner.hardware import cluster_file

    if arguments.cluster:
        return cluster_file.parse_cluster(arguments.cluster)
    return cluster_file.cluster_of(plan)


def spec_of(plan: "Plan", arguments: argparse.Namespace, folder: Path) -> str:
    """Return a spec of that cluster: of one that the plan alone holds, a file in the folder."""
    if arguments.cluster or not plan.cluster_text:
        return arguments.cluster or plan.cluster
    path = folder / "cluster.toml"
    path.write_text(plan.cluster_text, encoding="utf-8")
    return str(path)
