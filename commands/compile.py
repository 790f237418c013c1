"""`meshwright compile`: a plan to a program's folder."""

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .output import print_result, write_text
from .parsers import add_command
from .plan_file import read_plan

if TYPE_CHECKING:
    from meshwright.ir.plan import Plan


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


def write_program(plan: "Plan", folder: Path) -> list[str]:
    """Write the program's files and its copy of the runtime; return the names of the files.

    What an older program left in the folder goes. Raises ValueError where it holds anything else.
    """
    from meshwright.codegen.program import emit

    files = emit(plan)
    _clear(folder)
    for name, text in files.items():
        write_text(folder / name, text)
    for script in ("launch.sh", "job.sbatch"):
        (folder / script).chmod(0o755)
    _copy_runtime(folder / "runtime")
    return sorted(files)


def _clear(folder: Path) -> None:
    """Remove an older program, and nothing that a run or a user put beside it."""
    held = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if held and not _is_program(folder):
        names = ", ".join(held[:3]) + (f" and {len(held) - 3} more" if len(held) > 3 else "")
        raise ValueError(
            f"-o {folder} is no program's folder, it holds {names}; give a new or an empty folder, "
            "or that of an older program"
        )
    for path in (*folder.glob("stage_*.py"), folder / "identity.json"):
        path.unlink(missing_ok=True)
    for name in ("runtime", "__pycache__"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _is_program(folder: Path) -> bool:
    layout = folder / "layout.py"
    return layout.is_file() and "\nfrom runtime.layout import " in layout.read_text(
        errors="replace"
    )


def _copy_runtime(target: Path) -> None:
    import meshwright.runtime

    source = Path(meshwright.runtime.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(source, target, ignore=ignored)


def _run(arguments: argparse.Namespace) -> None:
    folder = Path(arguments.output)
    files = write_program(read_plan(arguments.plan), folder)
    print_result(
        arguments,
        {"program": str(folder), "files": files},
        f"program written to {folder}/: {', '.join(files)}\n"
        f"run it with: meshwright run {folder} --data demo --steps 100",
    )
