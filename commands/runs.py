"""`meshwright runs`: the runs in a folder."""

import argparse
from pathlib import Path
from typing import Any

from .output import print_result
from .parsers import add_command

_HEAD = ("name", "model", "steps", "loss", "held out", "state", "when (UTC)")


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "runs",
        _run,
        "List the runs in a folder and below: model, steps kept of all, last loss, state, and when "
        "each was last heard of. Steps after the newest checkpoint of a run that was stopped are "
        "lost: going on trains them again.",
    )
    parser.add_argument("folder", nargs="?", default=".", help="(default: this one)")


def _run(arguments: argparse.Namespace) -> None:
    from meshwright.runtime.training.changes import columns
    from meshwright.runtime.training.past_run import find_runs

    top = Path(arguments.folder)
    found = [run.summary() for run in find_runs(top)]
    rows = [_HEAD, *(_row(top, said) for said in found)]
    text = "\n".join(columns(rows)) if found else f"{top} holds no runs"
    print_result(arguments, {"runs": found}, text)


def _row(top: Path, said: dict[str, Any]) -> tuple[str, ...]:
    folder = Path(said["folder"])
    name = said["name"] if folder == top else str(folder.relative_to(top))
    kept, lost = said["kept_steps"], said["done_steps"] - said["kept_steps"]
    steps = f"{kept} of {said['steps']}" + (f", {lost} more lost" if lost else "")
    losses = ("" if said[key] is None else f"{said[key]:.4f}" for key in ("loss", "eval_loss"))
    return (name, said["model"], steps, *losses, said["state"], _when(said["when"]))


def _when(text: str) -> str:
    return text.removesuffix("+00:00").replace("T", " ")
