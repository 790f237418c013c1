"""`meshwright submit`: a job file, or a program, as a job of Slurm."""

import argparse
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .doing import Doing
from .output import print_result
from .parsers import add_command, given_options

if TYPE_CHECKING:
    from meshwright.api.slurm import Submission

# Numbers that are the same for all tasks of an array.
_OF_THE_JOB = ("spare", "restarts", "backoff", "stop_before")


def add(commands: Any) -> None:
    """Add the command."""
    from meshwright.runtime.training.options import add_arguments

    parser = add_command(
        commands,
        "submit",
        _run,
        "Submit a job of Slurm. TARGET is a job file, which is planned for the nodes that are "
        "granted, or a program's folder with the options of its run. The script, job.sbatch, is "
        "written into the run's folder and shown.",
    )
    parser.add_argument("target", help="a job's TOML file, or a program's folder")
    _add_slurm(parser)
    parser.add_argument("--dry-run", action="store_true", help="write the script, submit nothing")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=c")
    add_arguments(parser)
    for action in parser._actions:
        if action.type is not None and action.dest not in _OF_THE_JOB:
            action.type = _OfATask(action.type)


@dataclass(frozen=True)
class _OfATask:
    """Reads an option of the run; one that names the task of an array is read there."""

    kind: Any

    def __call__(self, text: str) -> Any:
        from meshwright.runtime.slurm.scheduler import TASK

        return text if TASK in text else self.kind(text)


def _add_slurm(parser: argparse.ArgumentParser) -> None:
    words = {
        "nodes": "a number, or the least and the most, as 2-4 (default: those of the plan)",
        "time": "that the job may take, as 12:00:00 (default: the site's, else a day)",
        "partition": "(default: the site's)",
        "account": "(default: the site's)",
        "qos": "(default: the site's)",
        "constraint": "features that nodes must have (default: the site's)",
        "gres": "in place of --gpus-per-node, as gpu:h100:8 (default: the site's)",
        "array": "tasks, as 0-3; %%a in an option of the run stands for the number of the task",
        "name": "of the job (default: the target's)",
        "site": "a TOML file of defaults (default: ~/.config/meshwright/site.toml)",
    }
    for name, text in words.items():
        parser.add_argument(f"--{name}", default="", help=text)
    parser.add_argument(
        "--after",
        action="append",
        default=[],
        metavar="JOB",
        help="that must have ended well: its id, or its run's folder",
    )
    parser.add_argument(
        "--spare", type=int, default=0, help="nodes more that take the place of failed ones"
    )
    parser.add_argument(
        "--on-failure",
        choices=("restart", "requeue", "stop"),
        default="restart",
        help="of ranks or nodes: restart on the nodes that are left, queue the job again, or stop",
    )
    parser.add_argument(
        "--restarts",
        type=int,
        default=3,
        help="failures in a row, without a new checkpoint between them, that are restarted",
    )
    parser.add_argument(
        "--backoff", type=float, default=10.0, help="seconds before a restart, doubled each time"
    )
    parser.add_argument(
        "--stop-before",
        type=float,
        help="seconds before the end of the job's time at which ranks save (default: 600, at most "
        "a tenth of the time)",
    )
    parser.add_argument(
        "--plan-inside", action="store_true", help="plan a job file only when nodes are granted"
    )


def _run(arguments: argparse.Namespace) -> int:
    from meshwright.api.slurm import SlurmOptions, submit

    names = "nodes time partition account qos constraint gres array name after site spare"
    names += " on_failure restarts backoff stop_before plan_inside"
    slurm = SlurmOptions(**{name: getattr(arguments, name) for name in names.split()})
    options = given_options(arguments)
    with Doing() as say:
        made = submit(
            arguments.target,
            slurm,
            options={k: v for k, v in options.items() if k != "out" and v is not False},
            overrides=arguments.set,
            out=options.get("out"),
            dry_run=arguments.dry_run,
            say=say,
        )
    _print(arguments, made, arguments.array)
    return 0


def _print(
    arguments: argparse.Namespace, made: "Submission", array: str = "", part: str = ""
) -> None:
    """Print a job's script and where earlier files are, on standard error, and what came of it."""
    if not arguments.json:
        print(f"{made.script}:\n{made.text}", file=sys.stderr)
    if made.aside and made.job:
        places = ", ".join(map(str, made.aside))
        print(f"what an earlier job left in {made.out} is now in {places}", file=sys.stderr)
    data = {"job": made.job, "script": str(made.script), "run": str(made.out)}
    print_result(arguments, data, _text(made, array) if made.job else _hint(made, part), part)


def _text(made: "Submission", array: str) -> str:
    from meshwright.runtime.slurm.script import array_tasks

    job, out = made.job, made.out
    if array:
        first, of = (
            f"{job}_{array_tasks(array)[0]}",
            f"job {job} of {len(array_tasks(array))} tasks",
        )
        return f"{of}: runs {out}; meshwright status {first}, logs {first} -f, cancel {job}"
    return f"job {job}: run {out}; meshwright status {job}, logs {job} -f, cancel {job}"


def _hint(made: "Submission", part: str) -> str:
    """Return how a job that was only written is submitted: what runs in a folder that holds an
    earlier job goes on from that."""
    if made.aside:
        return (
            f"{made.script} is written, and {made.out} holds the earlier job as before; the same "
            f"command without {'--prepare' if part else '--dry-run'} moves that aside, and submits"
        )
    return (
        f"{made.script} is written; submit it with: sbatch {made.script}; status, logs and control "
        f"know that job by its folder, {made.out}"
    )


def submit_job(arguments: argparse.Namespace) -> int:
    """Submit the job file of `meshwright train --slurm`."""
    from meshwright.api.slurm import SlurmOptions, submit

    nodes = "" if arguments.nodes is None else str(arguments.nodes)
    given = [f'plan.effort="{arguments.effort}"'] if arguments.effort else []
    flags = {name: True for name in ("fresh", "allow_change") if getattr(arguments, name)}
    with Doing() as say:
        made = submit(
            arguments.job,
            SlurmOptions(nodes=nodes),
            options=flags,
            overrides=[*arguments.set, *given],
            out=arguments.out,
            dry_run=arguments.prepare,
            say=say,
        )
    _print(arguments, made, part="slurm")
    return 0
