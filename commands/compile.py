"""`meshwright compile`: a plan to a program's folder."""

import argparse
from pathlib import Path
from typing import Any

from .output import print_result
from .parsers import add_command

_DATA = {"source": "pairs:DIR", "images": "images:DIR"}


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "compile",
        _run,
        "Write a plan's program: a folder that runs where only torch, numpy and safetensors are.",
    )
    parser.add_argument("plan", help="a plan's file")
    parser.add_argument("-o", "--output", default="program", help="the program's folder")


def _run(arguments: argparse.Namespace) -> None:
    from meshwright.api.plans import Plan
    from meshwright.api.programs import compile
    from meshwright.runtime.given import check_folder_place

    plan = Plan.load(arguments.plan)
    check_folder_place("-o", Path(arguments.output))
    program = compile(plan, arguments.output)
    folder, files = program.folder, program.files
    roles = {i.role for i in plan.decisions.inputs}
    data = next((kind for role, kind in _DATA.items() if role in roles), "demo")
    print_result(
        arguments,
        {"program": str(folder), "files": files},
        f"program written to {folder}/: {', '.join(files)}\n"
        f"run it with: meshwright run {folder} --data {data} --steps 100",
    )
