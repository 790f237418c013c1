"""Runs by their folders, read: what run.json and metrics.jsonl say. Torch is not needed."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from ..fast_mark import read_mark

FILE, VERSION = "run.json", "meshwright run v1"
# Environment variables of a launcher: the user's command line, and the folder it was given in.
COMMAND, FOLDER = "MESHWRIGHT_COMMAND", "MESHWRIGHT_FOLDER"
LOG = "metrics.jsonl"
_KEYS = "state starts ended options program plan identity versions git".split()
_NOTHING_SET: dict[str, Any] = {"launch": "", "values": {}, "before": {}}
_DEPTH = 4  # of folders below the one that is searched for runs


class RunError(ValueError):
    """A folder that holds no run, or whose run.json cannot be read."""


@dataclass(frozen=True)
class PastRun:
    """A run's folder. said: its run.json."""

    folder: Path
    said: dict[str, Any]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of its log, of steps and evaluations, in order."""
        return list(_rows(self.folder / LOG))

    @property
    def last(self) -> dict[str, Any]:
        """Values of the last rows of its log by name: step, loss, eval_loss and more."""
        return {name: value for row in self.rows for name, value in row.items()}

    @property
    def options(self) -> dict[str, Any]:
        """Options of its last start by field name."""
        return self.said["options"]

    @property
    def done(self) -> int:
        """Steps that its log has."""
        return self.last.get("step", -1) + 1

    @property
    def newest(self) -> Path | None:
        """Return its newest checkpoint, None where it has none."""
        found = sorted((self.folder / "checkpoints").glob("step_*"))
        return next((path for path in reversed(found) if path.suffix != ".part"), None)

    @property
    def kept(self) -> int:
        """Steps that it would not train again: all of a run that goes on or has finished, else
        those of its newest checkpoint."""
        if self.state in ("running", "finished"):
            return self.done
        return min(int(self.newest.name.removeprefix("step_")), self.done) if self.newest else 0

    @property
    def state(self) -> str:
        """Return finished, stopped, interrupted, failed or running; a run that holds no lock and
        did not say how it ended has failed."""
        state = str(self.said["state"])
        return "failed" if state == "running" and not is_held(self.folder) else state

    @property
    def when(self) -> str:
        """Time when it ended, or else wrote its last row, or began; ISO 8601, UTC."""
        log = self.folder / LOG
        if self.said["ended"]:
            return str(self.said["ended"])
        if log.is_file():
            written = datetime.fromtimestamp(log.stat().st_mtime, UTC)
            return written.isoformat(timespec="seconds")
        return str(self.said["starts"][-1]["time"])

    def summary(self) -> dict[str, Any]:
        """Return what a list of runs says of it."""
        model = self.said["identity"]["model"] or {}
        return {
            "name": self.folder.name,
            "folder": str(self.folder),
            "model": model.get("name", ""),
            "done_steps": self.done,
            "kept_steps": self.kept,
            "steps": self.options["steps"],
            "loss": self.last.get("loss"),
            "eval_loss": self.last.get("eval_loss"),
            "state": self.state,
            "when": self.when,
        }


def _rows(log: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a log up to one that is being written."""
    for line in log.read_text(encoding="utf-8").splitlines() if log.is_file() else ():
        try:
            yield json.loads(line)
        except ValueError:
            return


def read_run(folder: Path) -> PastRun:
    """Read a run's folder. Raises RunError where it holds none that reads."""
    path = folder / FILE
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(
            f"{path}: {error.strerror}: not the folder of a run, or of one before runs described "
            "themselves; that one goes on with: meshwright run PROGRAM --resume auto --out RUN"
        ) from None
    except ValueError as error:
        raise RunError(f"{path}: not JSON: {error}") from None
    version = said.get("version") if isinstance(said, dict) else None
    if version != VERSION:
        raise RunError(f"{path}: version {version!r}, expected {VERSION!r}")
    missing = [name for name in _KEYS if name not in said]
    if missing:
        raise RunError(f"{path}: malformed: lacks {', '.join(missing)}")
    return PastRun(folder, said)


def kept_option(folder: Path, name: str) -> Any:
    """Return an option of the run in a folder that has a checkpoint to go on from; None without."""
    saved = any(path.suffix != ".part" for path in folder.glob("checkpoints/step_*"))
    if not saved and not read_mark(folder):
        return None
    try:
        return read_run(folder).options.get(name)
    except RunError:
        return None


def set_live(folder: Path) -> dict[str, Any]:
    """Return what run.json says that a user set while the run of a folder was live: values by name
    of the option, those before, and the launch (see launch_of)."""
    try:
        return {**_NOTHING_SET, **read_run(folder).said.get("set", {})}
    except RunError:
        return _NOTHING_SET


def live_values(folder: Path, launch: str) -> dict[str, Any]:
    """Return the options that a user set while the run of a folder was live, by name; nothing where
    another launch started it."""
    said = set_live(folder)
    return dict(said["values"]) if said["launch"] == launch else {}


def kept_values(folder: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a user set live and that `options`, of the command that began the
    run, give as they were before."""
    said = set_live(folder)
    was = said["before"]
    return {n: v for n, v in said["values"].items() if n in was and options.get(n) == was[n]}


def launch_of(process: int) -> str:
    """Return what all starts of a run have in common that nobody asked for anew: the job of Slurm,
    or the launcher, which is a process."""
    job = os.environ.get("SLURM_JOB_ID")
    return f"job {job}" if job else f"process {process}"


def find_runs(folder: Path) -> list[PastRun]:
    """Return the runs in a folder and below, by path; what one set aside is not looked into.

    Raises RunError for a folder that is not there.
    """
    if not folder.is_dir():
        raise RunError(f"{folder}: there is no such folder; give one that holds runs")
    return [read_run(path) for path in _folders(folder, _DEPTH)]


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / FILE).is_file():
        yield folder
    elif depth:
        for path in sorted(filter(Path.is_dir, folder.glob("[!.]*"))):
            yield from _folders(path, depth - 1)


def is_held(out: Path) -> bool:
    """Tell whether a run writes to the folder; on a file system without locks none is seen."""
    try:
        with open(out / "lock", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def program_hash(folder: Path) -> str:
    """SHA-256 of a program's files and their names; what Python caches beside them is left out."""
    names = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
    hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in names.items()}
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()


def _files(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
