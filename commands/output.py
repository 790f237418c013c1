"""What commands print."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.api.results import RunResult


def say_to(arguments: argparse.Namespace) -> Callable[[str], None]:
    """Return a function that prints a line of progress, on standard error, with the seconds since
    now."""
    started = time.perf_counter()

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - started:6.1f} s] {text}", file=sys.stderr, flush=True)

    return say


def print_result(arguments: argparse.Namespace, result: dict, text: str, part: str = "") -> None:
    """Print the result as one JSON object under --json, else the text.

    Its `format` is named after the command; docs/json.md has the keys of each. part: of a command
    with several kinds of results.
    """
    name = ".".join(filter(None, ("meshwright", arguments.named, part)))
    print(json.dumps({"format": f"{name}/1", **result}) if arguments.json else text)


def tell_passed_over(complaints: list[str]) -> None:
    """Print why newer checkpoints of a run are not taken, a line each, on standard error."""
    for complaint in complaints:
        print(f"passed over a checkpoint: {complaint}", file=sys.stderr)


def print_run(arguments: argparse.Namespace, result: "RunResult") -> int:
    """Print what a run came to, its last row and where its files are; return its exit code."""
    if result.exit_code == 0:
        checkpoint = str(result.checkpoints[-1]) if result.checkpoints else None
        data = {"run": str(result.folder), "checkpoint": checkpoint, "last": result.last}
        print_result(arguments, data, _run_text(result, checkpoint))
    return result.exit_code


def _run_text(result: "RunResult", checkpoint: str | None) -> str:
    done = int(result.last["step"]) + 1
    parts = [f"{result.folder}: {done} steps", f"loss {result.loss:.4f}"]
    if result.evaluation is not None:
        parts.append(f"held-out loss {result.evaluation.loss:.4f}")
    places = f"log {result.log}" + (f", checkpoint {checkpoint}" if checkpoint else "")
    return f"{', '.join(parts)}; {places}"
