"""`meshwright train`: plan, compile and run from one job file."""

import argparse
import sys
from typing import Any

from .doing import Doing
from .output import print_result, print_run, say_to
from .parsers import add_command, add_effort
from .submit import submit_job

# Options of `submit` that --slurm leaves to the site.
_OF_A_JOB = (
    "--time", "--partition", "--account", "--qos", "--constraint", "--gres", "--array", "--name",
    "--after", "--site", "--spare", "--on-failure", "--backoff", "--stop-before", "--plan-inside",
    "--dry-run",
)  # fmt: skip


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "train",
        _run,
        "Plan, compile and run from one job file. The job file (TOML) has the tables [plan] and "
        '[run] with the options of those commands by name, and model = "..." at the top. Names '
        "have underscores (save_every for --save-every); --group is groups, --no-search is search "
        "= false.",
    )
    parser.instead = _as_set
    parser.add_argument("job", help="a job's TOML file")
    parser.add_argument("--out", default=None, help="the run folder (overrides the file's)")
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="start at step 0 in a folder that holds a run, which is moved aside; without it the "
        "run goes on",
    )
    parser.add_argument(
        "--allow-change",
        action="store_true",
        help="go on where the file's options make the learning rate jump",
    )
    parser.add_argument("--prepare", action="store_true", help="plan and compile, and do not run")
    parser.add_argument(
        "--nodes", type=int, help="nodes of the cluster, in place of those of the file"
    )
    parser.add_argument(
        "--slurm",
        action="store_true",
        help="submit it as a job of Slurm, as meshwright submit does, with the site's defaults",
    )
    add_effort(parser, None)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="a.b=c",
        help="override a value of the file, such as run.steps=200; "
        "plan.pin={} drops all of its pins",
    )


def _as_set(option: str) -> str:
    from meshwright.runtime.training.options import flag, option_names

    names = {flag(name): name for name in option_names()}
    if option in _OF_A_JOB:
        return "it to meshwright submit, which takes all options of a job of Slurm"
    return f"--set run.{names[option]}=VALUE" if option in names else ""


def _run(arguments: argparse.Namespace) -> int:
    from meshwright.api.jobs import prepare

    if arguments.slurm:
        return submit_job(arguments)
    given = [f'plan.effort="{arguments.effort}"'] if arguments.effort else []
    given += ["run.allow_change=true"] if arguments.allow_change else []
    with Doing() as say:
        ready = prepare(
            arguments.job,
            overrides=[*arguments.set, *given],
            out=arguments.out,
            fresh=arguments.fresh,
            nodes=arguments.nodes,
            say=say,
        )
    if arguments.prepare:
        folder = ready.folder
        data = {"plan": str(folder / "plan.txt"), "program": str(folder / "program")}
        text = f"{ready.plan.summary}\nprogram: {data['program']}"
        print_result(arguments, data, text, "prepare")
        return 0
    print(ready.plan.summary, file=sys.stderr)
    return print_run(arguments, ready.train(say=say_to(arguments)))
