"""`run.json`, what a run says of itself: whatever decides it, where it runs, and how it ended."""

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ..atomic_file import write_atomic
from ..data import absolute
from ..identity import Identity
from ..node_path import is_of_a_node
from .options import RunOptions
from .past_run import (
    COMMAND,
    FILE,
    FOLDER,
    VERSION,
    RunError,
    launch_of,
    program_hash,
    read_run,
    set_live,
)

_GIT_LIMIT_S = 10.0


class RunRecord:
    """The run.json of a run's folder, kept by one rank."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.said: dict[str, Any] = {}

    def begin(
        self,
        program: Path,
        options: RunOptions,
        identity: Identity,
        hosts: Sequence[str],
        step: int,
        start_id: str = "",
    ) -> None:
        """Write what is known at the start, before `step`; earlier starts of the run are kept.
        start_id: of this start, as the fast tier of checkpoints names it."""
        start = {
            "id": start_id,
            "time": _now(),
            "step": step,
            "command": _command(),
            "hosts": list(hosts),
        }
        self.said = {
            "version": VERSION,
            "state": "running",
            "starts": [*_starts(self.out), start],
            "ended": None,
            "why": "",
            "options": _placed(options),
            "set": _set_so_far(self.out, options),
            "program": {"folder": str(program.resolve()), "sha256": program_hash(program)},
            "plan": _plan(program),
            "identity": identity.to_json(),
            "versions": versions(),
            "folder": _folder(),
            "git": git_state(_folder()),
        }
        self._write()

    def change(self, options: RunOptions) -> None:
        """Write options that were changed while the run goes on, and on its restarts."""
        before, now = self.said["options"], _placed(options)
        changed = {name: value for name, value in now.items() if value != before[name]}
        was = {name: before[name] for name in changed}
        said = self.said["set"]
        self.said["options"] = now
        self.said["set"] = said | {
            "values": said["values"] | changed,
            "before": was | said["before"],
        }
        self._write()

    def end(self, state: str, why: str = "") -> None:
        """Write how the run ended: "finished", "stopped" or "failed". A rank that is killed, or one
        that another ends, writes nothing; a launcher writes "interrupted" (see interrupted.py)."""
        self.said |= {"state": state, "ended": _now(), "why": why}
        self._write()

    def _write(self) -> None:
        write_atomic(self.out / FILE, json.dumps(self.said, indent=1) + "\n")


def _set_so_far(out: Path, options: RunOptions) -> dict[str, Any]:
    """Return what a user set live and what this start goes on with, which its launch now holds."""
    said = set_live(out)
    held = {name for name, value in said["values"].items() if getattr(options, name) == value}
    kept = {key: {n: v for n, v in said[key].items() if n in held} for key in ("values", "before")}
    return {"launch": launch_of(os.getppid()), **kept}


def _placed(options: RunOptions) -> dict[str, Any]:
    """Options by field name, with paths that hold in any folder."""
    data, held_out = absolute(options.data), absolute(options.eval_data)
    placed = {"out": str(Path(options.out).resolve()), "data": data, "eval_data": held_out}
    if options.fast_dir and not is_of_a_node(options.fast_dir):
        placed["fast_dir"] = str(Path(options.fast_dir).resolve())
    return asdict(options) | placed


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _starts(out: Path) -> list[dict[str, Any]]:
    """Return the earlier starts of a run that goes on; of none that can be read there are none."""
    try:
        return list(read_run(out).said["starts"])
    except (RunError, KeyError):
        return []


def _command() -> str:
    return os.environ.get(COMMAND) or shlex.join([sys.executable, *sys.argv])


def _folder() -> str:
    return os.environ.get(FOLDER) or os.getcwd()


def _plan(program: Path) -> dict[str, str]:
    """Return the plan's hash, as `layout.py` names it, and its text; "" where a file is gone."""
    report, text = program / "report.json", program / "plan.txt"
    known = json.loads(report.read_text()) if report.is_file() else {}
    return {"hash": known.get("plan", ""), "text": text.read_text() if text.is_file() else ""}


def versions() -> dict[str, str | None]:
    """Versions by name; None where a thing is not there."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "meshwright": _installed("meshwright"),
    }


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def git_state(folder: str) -> dict[str, Any] | None:
    """Return the commit of a folder's repository, and whether it has changes; None outside of one,
    or without git."""
    commit = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain")
    return None if commit is None else {"commit": commit, "dirty": bool(changed)}


def _git(folder: str, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", folder, *words], capture_output=True, text=True, timeout=_GIT_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
