"""What commands print and write."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path


def say_to(arguments: argparse.Namespace) -> Callable[[str], None]:
    """Return a function that prints a line of progress, on standard error, with the seconds since
    now."""
    started = time.perf_counter()

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - started:6.1f} s] {text}", file=sys.stderr, flush=True)

    return say


def print_result(arguments: argparse.Namespace, result: dict, text: str) -> None:
    """Print the result as one JSON object under --json, else the text."""
    print(json.dumps(result) if arguments.json else text)


def print_run(arguments: argparse.Namespace, out: Path) -> None:
    """Print what a run came to: its last row, and where its checkpoint and its log are."""
    from meshwright.runtime.checkpoint.manifest import complete
    from meshwright.runtime.metrics.step_log import last_rows

    row, saved = last_rows(out / "metrics.jsonl"), complete(out / "checkpoints")
    done = int(row["step"] or 0) + 1
    checkpoint = str(saved[-1]) if saved else None
    shown = [f"{out}: {done} steps", f"loss {_shown(row.get('loss'))}"]
    if "eval_loss" in row:
        shown.append(f"held-out loss {_shown(row['eval_loss'])}")
    places = f"log {out / 'metrics.jsonl'}" + (f", checkpoint {checkpoint}" if checkpoint else "")
    result = {"run": str(out), "checkpoint": checkpoint, **row}
    print_result(arguments, result, f"{', '.join(shown)}; {places}")


def _shown(loss: float | None) -> str:
    return "nan" if loss is None else f"{loss:.4f}"


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)
