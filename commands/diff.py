"""`meshwright diff`: two plans side by side, or two runs."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.api.plans import read_plan

from .output import print_result
from .parsers import add_cluster, add_command
from .plan_file import cluster_of

if TYPE_CHECKING:
    from meshwright.ir.plan import Plan
    from meshwright.planner.hardware.cluster import Cluster
    from meshwright.runtime.training.past_run import PastRun


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "diff",
        _run,
        "Compare two plans of one model, or two runs. Prints where plans differ, and "
        "what each is worth in step time and peak memory, on two clusters as well; of runs the "
        "options and what else differs, and the last losses of both.",
    )
    parser.add_argument("first", help="a plan's file, or a run's folder")
    parser.add_argument("second", help="another of the same kind")
    add_cluster(parser)


def _run(arguments: argparse.Namespace) -> None:
    folders = [Path(text).is_dir() for text in (arguments.first, arguments.second)]
    if all(folders):
        _diff_runs(arguments)
    elif any(folders):
        kinds = ("a folder" if is_folder else "no folder" for is_folder in folders)
        raise ValueError(
            f"{arguments.first} is {next(kinds)}, {arguments.second} is {next(kinds)}: give two "
            "plans' files, or two runs' folders"
        )
    else:
        _diff_plans(arguments)


def _diff_plans(arguments: argparse.Namespace) -> None:
    # Read before the planner is imported: what is no plan is refused at once.
    first, second = read_plan(arguments.first), read_plan(arguments.second)
    from meshwright.planner.report.diff import diff
    from meshwright.planner.report.search_data import diff_facts

    clusters = cluster_of(first, arguments), cluster_of(second, arguments)
    _check_devices(arguments.first, first, clusters[0])
    _check_devices(arguments.second, second, clusters[1])
    if arguments.json:
        print_result(arguments, diff_facts(first, second, clusters), "", "plans")
    else:
        print(diff(first, second, clusters))


def _check_devices(path: str, plan: "Plan", cluster: "Cluster") -> None:
    """Refuse a --cluster that has not as many devices as a plan."""
    count = plan.mesh.num_devices
    if count != cluster.num_devices:
        raise ValueError(
            f"{path} is for {count} devices, --cluster {cluster.name} has {cluster.num_devices}; "
            "give one of as many, or leave it out: each plan is priced on its own then"
        )


def _diff_runs(arguments: argparse.Namespace) -> None:
    from meshwright.runtime.training.changes import columns
    from meshwright.runtime.training.past_run import read_run

    runs = [read_run(Path(text)) for text in (arguments.first, arguments.second)]
    first, second = map(_facts, runs)
    differ = {k: [first[k], second[k]] for k in first if first[k] != second[k]}
    ends = {k: [run.last.get(k) for run in runs] for k in ("loss", "eval_loss", "tokens_per_s")}
    ends = {"steps done": [run.done for run in runs], **ends}
    rows = [("", *(str(run.folder) for run in runs))]
    rows += [(name, *map(_shown, both)) for name, both in (differ | ends).items()]
    print_result(arguments, {"differ": differ, "ends": ends}, "\n".join(columns(rows)), "runs")


def _facts(run: "PastRun") -> dict[str, Any]:
    """What decides a run, by name: options, then plan, program, model and versions."""
    from meshwright.runtime.training.changes import of_steps
    from meshwright.runtime.training.options import flag

    said = run.said
    return {
        **{flag(name): run.options.get(name) for name in ("data", *of_steps())},
        "plan": said["plan"]["hash"],
        "program": said["program"]["sha256"][:16],
        "model": said["identity"]["model"] and said["identity"]["model"]["name"],
        "commit": said["git"] and said["git"]["commit"][:12],
        **said["versions"],
    }


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(value) or "none"
    return "none" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
