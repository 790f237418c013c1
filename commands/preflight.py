"""`meshwright preflight`: what this machine does now, against what a program's plan assumes."""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from .output import print_result
from .parsers import add_command


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "preflight",
        _run,
        "Compare this machine with what a program's plan assumes: devices, memory, versions, disk, "
        "and rates of matmuls, copies and collectives. It takes seconds and trains nothing.",
    )
    parser.add_argument("program", help="a program's folder")
    parser.add_argument("--anyway", action="store_true", help="go on where the machine is another")


def _run(arguments: argparse.Namespace) -> int:
    from meshwright.api.runs import preflight

    with tempfile.TemporaryDirectory() as folder:
        preflight(arguments.program, Path(folder) / "run", anyway=arguments.anyway)
        found = json.loads((Path(folder) / "run" / "preflight.json").read_text())
    slow = found["slow"]
    text = "\n".join(f"not as planned: {line}" for line in slow) or "all is as planned"
    print_result(arguments, found, text)
    return 1 if slow else 0
