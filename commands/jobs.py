"""`meshwright jobs`, `logs` and `cancel`: the jobs of Slurm that were submitted here."""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .output import print_result
from .parsers import add_command

_HEAD = ("job", "state", "nodes", "run", "reason")
_EVERY_S = 0.5


def add(commands: Any) -> None:
    """Add the commands."""
    add_command(commands, "jobs", _jobs, "List the jobs of Slurm that were submitted from here.")
    logs = add_command(
        commands, "logs", _logs, "Print the log of a job, or what one of its ranks said of errors."
    )
    logs.add_argument("name", metavar="JOB", help="a job's id, or a run's folder")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the job has ended")
    logs.add_argument("--rank", type=int, help="of the newest attempt: its standard error")
    cancel = add_command(
        commands, "cancel", _cancel, "Cancel a job: its ranks save, and it is not queued again."
    )
    cancel.add_argument("name", metavar="JOB", help="a job's id")


def _jobs(arguments: argparse.Namespace) -> None:
    from meshwright.api.slurm import as_data, jobs
    from meshwright.runtime.training.changes import columns

    found = jobs()
    rows = [(s.job, s.state or "ended", s.nodes, str(s.out), s.reason) for s in found]
    text = "\n".join(columns([_HEAD, *rows])) if found else "no job was submitted from here"
    print_result(arguments, {"jobs": [as_data(state) for state in found]}, text)


def _cancel(arguments: argparse.Namespace) -> None:
    from meshwright.api.slurm import cancel

    cancel(arguments.name)
    print_result(arguments, {"job": arguments.name}, f"job {arguments.name} is cancelled")


def _logs(arguments: argparse.Namespace) -> None:
    from meshwright.api.slurm import folder_of

    path = _log(folder_of(arguments.name), arguments.rank)
    if arguments.json:
        text = path.read_text(errors="replace")
        print_result(arguments, {"file": str(path), "text": text}, text)
        return
    texts = _followed(path, arguments) if arguments.follow else [path.read_text(errors="replace")]
    said = False
    for text in texts:
        said = said or bool(text)
        print(text, end="", flush=True)
    if not said:
        print(f"{path} is empty", file=sys.stderr)


def _log(out: Path, rank: int | None) -> Path:
    """Return the newest log of a run's job, or of a rank. Raises ValueError where there is none."""
    folder = out / "slurm"
    if rank is None:
        found = sorted(folder.glob("job-*.log"), key=lambda path: path.stat().st_mtime)
        what = "job has written a log"
    else:
        found = sorted(folder.glob(f"attempt_*/rank_{rank:05d}.err"))
        what = f"attempt has a rank {rank}"
    if not found:
        raise ValueError(f"{folder}: no {what} yet (0 files); `meshwright jobs` says what waits")
    return found[-1]


def _followed(path: Path, arguments: argparse.Namespace) -> Iterator[str]:
    """Yield what is written to a file until its job has ended."""
    with open(path, encoding="utf-8", errors="replace") as file:
        looked_s = 0.0
        while True:
            text = file.read()
            if text:
                yield text
                continue
            if time.monotonic() - looked_s > 5.0:
                looked_s = time.monotonic()
                if not _is_live(arguments.name):
                    print(f"{arguments.name} has ended", file=sys.stderr)
                    return
            time.sleep(_EVERY_S)


def _is_live(name: str) -> bool:
    from meshwright.api.slurm import jobs

    found = [s for s in jobs() if name in (s.job, str(s.out))]
    return any(s.state in ("RUNNING", "PENDING", "COMPLETING") for s in found)
