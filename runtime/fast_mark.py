"""OUT/fast.json: the newest fast checkpoint of a run, told where all hosts read it."""

import json
from pathlib import Path
from typing import Any

from .atomic_file import write_atomic

MARK = "fast.json"


def write_mark(out: Path, step: int, folder: str) -> None:
    """Tell of the checkpoint after `step` steps. folder: in which each host has its own."""
    write_atomic(out / MARK, json.dumps({"step": step, "folder": folder}) + "\n")


def drop_mark(out: Path, above: int) -> None:
    """Tell no longer of a checkpoint of more than `above` steps."""
    if read_mark(out) > above:
        (out / MARK).unlink(missing_ok=True)


def read_mark(out: Path) -> int:
    """Return the steps of the newest fast checkpoint that a run told of, 0 for none."""
    found = read_fast(out)
    return int(found["step"]) if found else 0


def read_fast(out: Path) -> dict[str, Any] | None:
    """Return what a run told of its newest fast checkpoint: `step` and `folder`; None of none."""
    try:
        said = json.loads((out / MARK).read_text())
        return {"step": int(said["step"]), "folder": str(said["folder"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None
