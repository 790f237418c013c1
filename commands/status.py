"""`meshwright status`: where a run stands, alive or not, and what became of its time."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .output import print_result
from .parsers import add_command

if TYPE_CHECKING:
    from meshwright.api.slurm import JobState
    from meshwright.runtime.training.past_run import PastRun


# Keys that are null before the first rank has begun.
_OF_A_RUN = (
    "name folder model done_steps kept_steps steps loss eval_loss state when step_ms "
    "predicted_step_ms checkpoint fast_checkpoint goodput"
).split()


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "status",
        _run,
        "Tell where a run stands: steps, loss, step time against the prediction, its newest "
        "checkpoint, attempts of its job, goodput and where the rest of the time went.",
    )
    parser.add_argument("name", metavar="RUN", help="a run's folder, or a job's id")


def _run(arguments: argparse.Namespace) -> int:
    from meshwright.api.slurm import as_data, folder_of
    from meshwright.runtime.fast_mark import read_fast
    from meshwright.runtime.slurm.attempts import read_attempts
    from meshwright.runtime.training.goodput import goodput
    from meshwright.runtime.training.past_run import RunError, read_run

    out = folder_of(arguments.name)
    job = _job(arguments.name)
    attempts = read_attempts(out)
    data: dict[str, Any] = {"run": str(out), "job": as_data(job) if job else None}
    data |= {"attempts": [vars(attempt) for attempt in attempts]}
    lines = [_job_text(job)] if job else []
    try:
        run = read_run(out)
    except RunError:
        if job is None:
            raise
        said = [*lines, "no rank has begun yet", *map(_attempt_text, attempts)]
        print_result(arguments, {**data, **dict.fromkeys(_OF_A_RUN)}, "\n".join(said))
        return 0
    found = goodput(run)
    data |= {**run.summary(), **_steps(run), "checkpoint": run.newest and str(run.newest)}
    data |= {"fast_checkpoint": read_fast(out), "goodput": found.as_data() if found else None}
    print_result(arguments, data, "\n".join([*lines, *_text(run, data, attempts, found)]))
    return 0


def _job(name: str) -> "JobState | None":
    """Return the job that a name is of, None where there is no Slurm."""
    from meshwright.api.slurm import find_job

    try:
        return find_job(name)
    except ValueError:
        return None


def _job_text(job: "JobState") -> str:
    said = (job.state or "ended", job.nodes, job.reason)
    return f"job {job.job}: {' '.join(filter(None, said))}"


def _steps(run: "PastRun") -> dict[str, Any]:
    """Return the median step of the run, and what the plan predicted."""
    import statistics

    from meshwright.runtime.training.fidelity_file import predicted

    took = [row["step_ms"] for row in run.rows if "step_ms" in row]
    planned = predicted(Path(run.said["program"]["folder"])).get("predicted_step_us")
    median = statistics.median(took) if took else None
    return {"step_ms": median, "predicted_step_ms": planned and planned / 1e3}


def _text(run: "PastRun", data: dict[str, Any], attempts: list[Any], found: Any) -> list[str]:
    from meshwright.runtime.training.goodput import lines

    step = f"{data['step_ms']:.1f} ms a step" if data["step_ms"] else "no step yet"
    if data["step_ms"] and data["predicted_step_ms"]:
        step += f", predicted {data['predicted_step_ms']:.1f}"
    loss = "" if data["loss"] is None else f"  loss {data['loss']:.4f}"
    said = [
        f"{data['model']} in {run.folder}: {data['state']}",
        f"step {data['done_steps']} of {data['steps']}{_lost(data)}{loss}  {step}",
        f"newest checkpoint: {data['checkpoint'] or 'none'}",
    ]
    if fast := data["fast_checkpoint"]:
        said.append(f"newest fast checkpoint: after {fast['step']} steps, in {fast['folder']}")
    said += [_attempt_text(attempt) for attempt in attempts]
    return [*said, *(lines(found) if found else [])]


def _lost(data: dict[str, Any]) -> str:
    kept = data["kept_steps"]
    return f" ({kept} kept)" if kept != data["done_steps"] else ""


def _attempt_text(attempt: Any) -> str:
    failed = "; ".join(f"{node}: {why}" for node, why in attempt.failed.items())
    text = f"attempt {attempt.number} on {', '.join(attempt.nodes)}: exit {attempt.code}"
    text += f", steps {attempt.first} to {attempt.saved} saved, {attempt.then}"
    return f"{text} ({failed})" if failed else text
