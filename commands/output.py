"""What commands print and write."""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path


def say_to(arguments: argparse.Namespace) -> Callable[[str], None]:
    """Return a function that prints a line of progress with the seconds since now, or nothing
    under --json."""
    started = time.perf_counter()

    def say(text: str) -> None:
        if not arguments.json:
            print(f"[{time.perf_counter() - started:6.1f} s] {text}", flush=True)

    return say


def print_result(arguments: argparse.Namespace, result: dict, text: str, part: str = "") -> None:
    """Print the result as one JSON object under --json, else the text.

    Its `format` is named after the command; docs/json.md has the keys of each. part: of a command
    with several kinds of results.
    """
    name = ".".join(filter(None, ("meshwright", arguments.named, part)))
    print(json.dumps({"format": f"{name}/1", **result}) if arguments.json else text)


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)
