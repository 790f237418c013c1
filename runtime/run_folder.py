"""A run's folder when a run begins: nothing of an earlier one is lost or mixed in."""

from pathlib import Path

from .checkpoint.manifest import complete, step_of
from .metrics import keep_before

RUN_FILES = ("metrics.jsonl", "checkpoints", "fidelity.json")
JOB_FILES = ("plan.txt", "plan.txt.report.txt", "program", "job.toml")


def begin(out: Path) -> Path | None:
    """For a run from step 0: move an earlier run's log and checkpoints to OUT/earlier-001.

    Returns where they went, None when there was nothing.
    """
    return _set_aside(out, [out / name for name in RUN_FILES])


def begin_job(out: Path, resumes: bool) -> Path | None:
    """For a job about to write its plan and program into `out`: move an earlier job's aside, and
    its log and checkpoints unless the job goes on from them."""
    return _set_aside(out, [out / name for name in (*JOB_FILES, *(() if resumes else RUN_FILES))])


def go_on(out: Path, step: int) -> Path | None:
    """For a run that resumes after `step` steps: what is past it is of an abandoned attempt.

    Rows of the log from `step` on are dropped, as they will be written again; checkpoints past
    `step` go to OUT/earlier-001. Returns where they went, None when there was nothing.
    """
    keep_before(out / "metrics.jsonl", step)
    return _set_aside(out, [p for p in complete(out / "checkpoints") if step_of(p) > step])


def _set_aside(out: Path, paths: list[Path]) -> Path | None:
    paths = [p for p in paths if p.exists()]
    if not paths:
        return None
    number = 1 + len(list(out.glob("earlier-*")))
    target = out / f"earlier-{number:03d}"
    target.mkdir(parents=True)
    for path in paths:
        path.rename(target / path.name)
    return target
