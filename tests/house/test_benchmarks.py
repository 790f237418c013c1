"""What benchmarks and examples import from meshwright is there: no other test runs them."""

import ast
from importlib import import_module
from pathlib import Path

import pytest
from house.rooms import ROOT

SCRIPTS = sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("examples/**/*.py")])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_name_that_a_script_imports_exists(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or node.level or node.module is None:
            continue
        if node.module.split(".")[0] == "meshwright":
            module = import_module(node.module)
            for alias in node.names:
                found = hasattr(module, alias.name)
                assert found or import_module(f"{node.module}.{alias.name}"), alias.name
