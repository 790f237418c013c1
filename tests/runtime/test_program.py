"""Emitted files that import what registers a custom op."""

import os
import sys
from pathlib import Path

import pytest

from meshwright.runtime.launch.ranks import Place, environment_of
from meshwright.runtime.own_code import IMPORT_PATH
from meshwright.runtime.training.program import ProgramError, load_module


def test_a_module_that_is_not_found_is_named_with_the_way_out(tmp_path: Path) -> None:
    stage = tmp_path / "stage_00.py"
    stage.write_text("import no_such_ops  # registers nosuch::op\n")
    with pytest.raises(ProgramError, match="stage_00.py imports no_such_ops.*PYTHONPATH"):
        load_module(stage)


def test_modules_are_found_where_the_run_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "ops_of_mine.py").write_text("KNOWN = True\n")
    stage = tmp_path / "stage_00.py"
    stage.write_text("import ops_of_mine\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv(IMPORT_PATH, str(folder))
    assert load_module(stage).ops_of_mine.KNOWN
    monkeypatch.delitem(sys.modules, "ops_of_mine")


def test_a_rank_looks_wherever_its_launcher_imports_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order in which folders came onto the path of the launcher does not count."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "late")])
    environment = environment_of(0, Place(first=0, here=1, world=1))
    assert str(tmp_path / "late") in environment[IMPORT_PATH].split(os.pathsep)
