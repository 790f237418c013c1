"""Planning needs no torch, running needs no solver: seen in a fresh interpreter."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from house.rooms import ROOT

# Imports every module below the package named first, while the names after it cannot be found.
# A kernel file may need triton, which only its caller asks for.
IMPORT_ALL = """
import importlib, pkgutil, sys
name, *hidden = sys.argv[1:]
for module in hidden:
    sys.modules[module] = None
package = importlib.import_module(name)
for module in pkgutil.walk_packages(package.__path__, name + "."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "triton":
            raise
"""


def _import_all(folder: Path, name: str, *hidden: str) -> None:
    # No bytecode: a test leaves no trace in the rooms.
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", IMPORT_ALL, name, *hidden]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_copy_of_runtime_imports_alone(tmp_path: Path) -> None:
    """As in an emitted program: top-level `runtime`, with neither meshwright nor a solver about."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "runtime", tmp_path / "runtime", ignore=ignored)
    _import_all(tmp_path, "runtime", "meshwright", "ortools", "transformers")


# Runs the command line with the words of argv; torch, sympy and numpy cannot be found.
WITHOUT_TORCH = """
import sys
for module in ("torch", "sympy", "numpy"):
    sys.modules[module] = None
from meshwright.cli import main
sys.exit(main(sys.argv[1:]))
"""
SIZES = ("--seq", "8", "--global-batch", "4")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--help",), 0, "Plan a model for a cluster"),
        (("pln",), 2, "COMMAND pln: unknown; did you mean plan"),
        (("plan", "tinyy", *SIZES), 2, "'tinyy'; nearest: tiny;"),
        (("plan", "absent.toml", *SIZES), 2, "cannot read absent.toml"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_names_are_looked_up_before_torch_is_imported(
    words: tuple[str, ...], code: int, said: str
) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code and said in done.stdout + done.stderr, done.stderr


DOORS = """
import sys
from runtime.entry import main
assert "torch" not in sys.modules, "a rank is watched before it loads torch"
from runtime import collectives, kernels, mesh
from runtime.layout import Bucket, Entry, Instance, Layout, Param, Piece
from runtime.engine import collectives as c, kernels as k, mesh as m
assert (c, k, m) == (collectives, kernels, mesh), "one module each: mesh holds the groups"
"""


def test_emitted_programs_find_the_doors_that_they_name(tmp_path: Path) -> None:
    (tmp_path / "runtime").symlink_to(ROOT / "runtime")
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", DOORS]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("room", ["planner", "codegen"])
def test_planning_and_emitting_import_no_torch(room: str, tmp_path: Path) -> None:
    if not (ROOT / room / "__init__.py").exists():
        pytest.skip(f"no {room}/__init__.py")
    _import_all(tmp_path, f"meshwright.{room}", "torch")
