"""`meshwright jobs`, `logs` and `cancel`: the jobs of Slurm that were submitted here."""

import argparse
import math
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .output import print_result
from .parsers import add_command

if TYPE_CHECKING:
    from meshwright.api.slurm import JobState

_HEAD = ("job", "state", "nodes", "run", "reason")
# Between two looks at a file, and at the job.
_EVERY_S, _ASK_S = 0.5, 5.0


def add(commands: Any) -> None:
    """Add the commands."""
    add_command(commands, "jobs", _jobs, "List the jobs of Slurm that were submitted from here.")
    logs = add_command(
        commands, "logs", _logs, "Print the log of a job, or what one of its ranks said of errors."
    )
    logs.add_argument("name", metavar="JOB", help="a job's id, or a run's folder")
    logs.add_argument(
        "-f",
        "--follow",
        action="store_true",
        help="go on until the job has ended; that of one that waits is awaited",
    )
    logs.add_argument("--rank", type=int, help="of the newest attempt: its standard error")
    cancel = add_command(
        commands, "cancel", _cancel, "Cancel a job: its ranks save, and it is not queued again."
    )
    cancel.add_argument("name", metavar="JOB", help="a job's id, or a run's folder")


def _jobs(arguments: argparse.Namespace) -> None:
    from meshwright.api.slurm import as_data, jobs
    from meshwright.runtime.training.changes import columns

    found = jobs()
    rows = [(s.job, s.state or "ended", s.nodes, str(s.out), s.reason) for s in found]
    text = "\n".join(columns([_HEAD, *rows])) if found else "no job was submitted from here"
    print_result(arguments, {"jobs": [as_data(state) for state in found]}, text)


def _cancel(arguments: argparse.Namespace) -> None:
    from meshwright.api.slurm import cancel

    job = cancel(arguments.name)
    print_result(arguments, {"job": job}, f"job {job} is cancelled")


def _logs(arguments: argparse.Namespace) -> None:
    from meshwright.api.slurm import folder_of

    watch = _Watch(arguments.name)
    path = _log(folder_of(arguments.name), arguments, watch)
    if arguments.json:
        text = path.read_text(errors="replace")
        print_result(arguments, {"file": str(path), "text": text}, text)
        return
    texts = _followed(path, watch) if arguments.follow else [path.read_text(errors="replace")]
    said = False
    for text in texts:
        said = said or bool(text)
        print(text, end="", flush=True)
    if not said:
        print(f"{path} is empty", file=sys.stderr)


class _Watch:
    """A job that is looked at every few seconds. name: its id, or its run's folder."""

    def __init__(self, name: str) -> None:
        self.name, self._asked_s = name, -math.inf
        self._job: JobState | None = None

    @property
    def job(self) -> "JobState | None":
        """The job, None without a Slurm that knows it."""
        from meshwright.api.slurm import find_job

        if time.monotonic() - self._asked_s > _ASK_S:
            with suppress(ValueError):
                self._job = find_job(self.name)
            self._asked_s = time.monotonic()
        return self._job

    @property
    def live(self) -> str:
        """The id of a job that may yet write, else ""."""
        from meshwright.api.slurm import LIVE

        return self.job.job if self.job and self.job.state in LIVE else ""

    def __str__(self) -> str:
        if self.job is None:
            return f"no job of {self.name} is known here"
        reason = f" ({self.job.reason})" if self.job.reason else ""
        return f"job {self.job.job} is {self.job.state or 'forgotten'}{reason}"


def _log(out: Path, arguments: argparse.Namespace, watch: _Watch) -> Path:
    """Return the newest log of a run's job, or of a rank; one that is followed is awaited. Raises
    ValueError where there is none."""
    rank, said = arguments.rank, False
    while True:
        job = watch.live if arguments.follow else ""
        ends = rank is not None and _ranks(out)
        found = _log_of(out, job or arguments.name) if rank is None else _ranks(out).get(rank)
        if found is not None:
            return found
        if ends or not job:
            raise ValueError(_lack(out, rank, watch))
        if not said:
            print(f"{watch}; its log is awaited", file=sys.stderr)
        said = True
        time.sleep(_EVERY_S)


def _log_of(out: Path, job: str) -> Path | None:
    """Return the log of a job that is named by its id, else the newest of the folder."""
    name = f"job-{job}.log" if job.isdigit() and out != Path(job) else "job-*.log"
    found = (out / "slurm").glob(name)
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _ranks(out: Path) -> dict[int, Path]:
    """Return what the ranks of the newest attempt said of errors, by rank."""
    newest = max((out / "slurm").glob("attempt_*/rank_*.err"), default=Path()).parent
    return {int(path.stem.removeprefix("rank_")): path for path in newest.glob("rank_*.err")}


def _lack(out: Path, rank: int | None, watch: _Watch) -> str:
    """Say which log is not there, and what the job does."""
    ranks = _ranks(out)
    if rank is not None and ranks:
        newest = ranks[min(ranks)].parent.name
        return f"--rank {rank}: {newest} in {out} has ranks {min(ranks)} to {max(ranks)}; give one"
    what = "has written no log" if rank is None else f"has begun no rank, --rank {rank} has no log"
    wait = "; -f awaits it" if watch.live else ""
    return f"{watch}, and {what} in {out / 'slurm'}{wait}"


def _followed(path: Path, watch: _Watch) -> Iterator[str]:
    """Yield what is written to a file until its job has ended."""
    with open(path, encoding="utf-8", errors="replace") as file:
        while True:
            live = watch.live
            text = file.read()
            if text:
                yield text
            elif not live:
                print(f"{watch.name} has ended", file=sys.stderr)
                return
            else:
                time.sleep(_EVERY_S)
