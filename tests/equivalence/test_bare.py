"""An emitted program runs where only torch, numpy and safetensors are."""

import json
import os
import subprocess
import sys
from pathlib import Path

from equivalence.cases import Case, ModelDraw
from equivalence.law import Court

from meshwright.api.programs import write_program

# Runs argv[1] as a script. Of all that is installed it finds what the README promises, and what
# torch itself needs for an optimizer; that the runtime asks for no sympy is tests/house's matter.
BARE = """
import runpy, sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path
FOUND = {"torch", "torchgen", "functorch", "numpy", "safetensors", "runtime"}
FOUND |= {"typing_extensions", "sympy", "mpmath"}
class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        top = name.partition(".")[0]
        known = top in FOUND or top in sys.stdlib_module_names or top.startswith("_sysconfigdata")
        return super().find_spec(name, path, target) if known else None
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Bare]
sys.argv.pop(0)
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
CASE = Case(number=0, seed=0, model=ModelDraw("llama", stock=False, variant=0, seed=0), dtype="f32")


def test_runs_a_step_and_resumes_in_a_bare_environment(court: Court, tmp_path: Path) -> None:
    program, out = tmp_path / "program", tmp_path / "run"
    write_program(court.plan(CASE), program)
    options = ["--data", f"random:{court.model(CASE.model).vocab}", "--steps", "1"]
    options += ["--no-compile", "--eval-batches", "1", "--out", str(out), "--save-every", "1"]
    command = [sys.executable, "-I", "-c", BARE, str(program / "main.py"), *options]
    _succeeds(command, tmp_path)
    (row, *_) = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert row["loss"] > 0 and row["grad_norm"] > 0
    _succeeds([*command, "--steps", "2", "--resume", "auto", "--allow-change"], tmp_path)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == [0, 1]


def _succeeds(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, env=_environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "MESHWRIGHT"))}
