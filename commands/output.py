"""What commands print."""

import argparse
import json
import time
from collections.abc import Callable


def say_to(arguments: argparse.Namespace) -> Callable[[str], None]:
    """Return a function that prints a line of progress with the seconds since now, or nothing
    under --json."""
    started = time.perf_counter()

    def say(text: str) -> None:
        if not arguments.json:
            print(f"[{time.perf_counter() - started:6.1f} s] {text}", flush=True)

    return say


def print_result(arguments: argparse.Namespace, result: dict, text: str) -> None:
    """Print the result as one JSON object under --json, else the text."""
    print(json.dumps(result) if arguments.json else text)
