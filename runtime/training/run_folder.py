"""A run's folder when a run begins: nothing of an earlier one is lost or mixed in."""

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import IO

from ..atomic_file import write_atomic
from ..checkpoint.manifest import complete, step_of
from ..fast_mark import MARK, read_mark
from ..given import check_folder_place
from ..metrics.step_log import keep_before
from .past_run import FILE, RunError, read_run
from .program import ProgramError

TRACKED = ("tensorboard", "wandb", "wandb.id")
RUN_FILES = (
    "run.json", "log.txt", "metrics.jsonl", "checkpoints", MARK, "fidelity.json", *TRACKED
)  # fmt: skip
JOB_FILES = ("plan.txt", "plan.txt.report.txt", "plan.key", "program", "job.toml")


def hold(out: Path) -> IO[str]:
    """Keep other runs out of the folder for as long as the file that is returned stays open; the
    system closes it with the process, whatever ends that.

    Raises ProgramError where a run holds it. A file system without locks keeps nobody out.
    """
    out.mkdir(parents=True, exist_ok=True)
    file = open(out / "lock", "a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise ProgramError(
            f"another run writes to {out} (process {holder}); wait for it, end it, or give "
            "another --out"
        ) from None
    except OSError:
        return file
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def check_free(out: Path) -> None:
    """Raise a ValueError where nothing can be written to the folder, or a run holds it."""
    check_folder_place("--out", out)
    if (out / "lock").exists():
        hold(out).close()


def begin(out: Path) -> Path | None:
    """Move an earlier run's log and checkpoints to OUT/earlier-001, for a run from step 0.

    Returns where they went, None when there was nothing.
    """
    return _set_aside(out, [out / name for name in RUN_FILES])


def unsaved(out: Path) -> str:
    """Return why a run begins anew in a folder that holds one, to be said before where that one
    went; "" where there is none, or it saved a checkpoint."""
    if complete(out / "checkpoints") or read_mark(out):
        return ""
    try:
        done = read_run(out).done
    except RunError:
        return ""
    return f"the run in {out} ended after {done} steps, none of them saved: starting anew; "


def begin_job(out: Path, plan: str, fresh: bool) -> Path | None:
    """Move an earlier job's plan and program aside, for a job about to write its own into `out`;
    they stay where its plan's text is `plan`. Its log and checkpoints stay where there is a
    checkpoint to go on from, unless the job is to start anew.
    """
    goes_on = not fresh and bool(complete(out / "checkpoints") or read_mark(out))
    known = out / "plan.txt"
    same = goes_on and known.is_file() and known.read_text(encoding="utf-8") == plan
    names = (*(() if same else JOB_FILES), *(() if goes_on else RUN_FILES))
    return _set_aside(out, [out / name for name in names])


def put_back(out: Path, aside: Path) -> None:
    """Undo what begin_job did, after a run that was refused: the earlier files come back, in place
    of those that were written since."""
    for path in aside.iterdir():
        written = out / path.name
        if written.is_dir():
            shutil.rmtree(written)
        else:
            written.unlink(missing_ok=True)
        path.rename(written)
    aside.rmdir()


def go_on(out: Path, step: int) -> Path | None:
    """Clear the way for a run that resumes after `step` steps; what is past it was abandoned.

    Rows of the log from `step` on are dropped, as they will be written again; checkpoints past
    `step` go to OUT/earlier-001. Returns where they went, None when there was nothing.
    """
    _note_last_row(out)
    keep_before(out / "metrics.jsonl", step)
    return pass_over(out, step)


def _note_last_row(out: Path) -> None:
    """Keep in run.json how far the start before came, rows that are about to be dropped counted."""
    try:
        run = read_run(out)
    except RunError:
        return
    steps = [row for row in run.rows if "step_ms" in row]
    if steps:
        start = run.said["starts"][-1]
        start |= {"done": steps[-1]["step"] + 1, "lived_s": steps[-1].get("elapsed_s")}
        write_atomic(out / FILE, json.dumps(run.said, indent=1) + "\n")


def pass_over(out: Path, step: int) -> Path | None:
    """Move the checkpoints past `step` to OUT/earlier-001; returns where, None without any."""
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
