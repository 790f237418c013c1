"""`meshwright train`: plan, compile and run from one job file."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .compile import write_program
from .output import print_result, say_to, write_text
from .parsers import add_command, add_effort
from .planning import make_plan_of

if TYPE_CHECKING:
    from meshwright.ir.plan import Plan
    from meshwright.runtime.launch.job import Job


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
    parser.add_argument("job", help="a job's TOML file")
    parser.add_argument("--out", default=None, help="the run folder (overrides the file's)")
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="start at step 0 in a folder that holds a run, which is moved aside; without it the "
        "run goes on",
    )
    add_effort(parser, None)
    parser.add_argument(
        "--set", action="append", default=[], metavar="a.b=c", help="override a value of the file"
    )


def _run(arguments: argparse.Namespace) -> int:
    from meshwright.runtime.launch.launcher import start_with_restarts
    from meshwright.runtime.metrics.step_log import last_rows

    job = _load_checked(arguments)
    out = Path(job.run.get("out", "run"))
    say = say_to(arguments)
    _write_job(job, out, arguments)
    where = f"plan: {out / 'plan.txt'}; program: {out / 'program'}"
    say(where)
    run = {**job.run, "out": str(out), "fresh": _is_fresh(job, arguments)}
    code = start_with_restarts(
        out / "program", run, job.restarts, say=say, port=0, quiet=arguments.json
    )
    if code == 0:
        result = {"run": str(out), "last": last_rows(out / "metrics.jsonl")}
        print_result(arguments, result, f"{where}; log: {out / 'metrics.jsonl'}")
    return code


def _load_checked(arguments: argparse.Namespace) -> "Job":
    """Return the job; what every rank would refuse is refused before anything is planned."""
    from meshwright.runtime.launch.job import load_job
    from meshwright.runtime.launch.launcher import check_resume
    from meshwright.runtime.metrics.trackers import check_tracker

    given = [f"run.out={json.dumps(arguments.out)}"] if arguments.out else []
    given += [f'plan.effort="{arguments.effort}"'] if arguments.effort else []
    job = load_job(Path(arguments.job), [*arguments.set, *given])
    check_resume(str(job.run.get("resume", "")))
    check_tracker(job.run.get("track", "none"))
    return job


def _write_job(job: "Job", out: Path, arguments: argparse.Namespace) -> None:
    """Write plan, report, program and the resolved job file into the run's folder."""
    from meshwright.ir.text.plan_text import format_plan
    from meshwright.runtime.training.run_folder import begin_job, check_free

    check_free(out)
    plan, search = make_plan_of(job.model, argparse.Namespace(**job.plan))
    aside = begin_job(out, format_plan(plan), _is_fresh(job, arguments))
    if aside is not None:
        say_to(arguments)(f"what an earlier job left in {out} is now in {aside}")
    _write_plan(plan, search.report(plan) if search else "", out)
    write_program(plan, out / "program")
    write_text(out / "job.toml", job.text)
    if not arguments.json:
        _print_summary(plan)


def _is_fresh(job: "Job", arguments: argparse.Namespace) -> bool:
    return arguments.fresh or bool(job.run.get("fresh"))


def _print_summary(plan: "Plan") -> None:
    from meshwright.planner.report.explain import summary

    print(summary(plan))


def _write_plan(plan: "Plan", report: str, out: Path) -> None:
    from meshwright.ir.text.plan_text import format_plan

    write_text(out / "plan.txt", format_plan(plan))
    if report:
        write_text(out / "plan.txt.report.txt", report)
