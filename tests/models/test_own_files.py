"""What determines a module of the user's own: whatever its import and its factory read."""

import sys
from pathlib import Path

import pytest

from meshwright.models.load import load_model

CODE = """
import json, pathlib
import {name}_part
from torch import nn

def build():
    width = json.loads(pathlib.Path(r"{folder}/width.json").read_text())
    model = nn.Sequential(nn.Embedding(11, width), nn.Linear(width, 11, bias=False))
    model.vocab_size = 11
    return model
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    name = f"own_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(CODE.format(name=name, folder=tmp_path))
    (tmp_path / f"{name}_part.py").write_text("RATE = 1\n")
    (tmp_path / "width.json").write_text("4")
    monkeypatch.syspath_prepend(str(tmp_path))
    return f"py:{name}:build"


def test_the_same_files_determine_the_same_module(spec: str) -> None:
    first = load_model(spec).determined_by
    assert first and load_model(spec).determined_by == first


@pytest.mark.parametrize("changed", ["code", "imported", "read", "environment"])
def test_whatever_changes_makes_another(
    spec: str, changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, name = load_model(spec).determined_by, spec.split(":")[1]
    file = {"code": f"{name}.py", "imported": f"{name}_part.py", "read": "width.json"}.get(changed)
    if file is None:
        monkeypatch.setenv("WIDTH_OF_MINE", "9")
    else:
        path = tmp_path / file
        path.write_text(path.read_text() + "\n")
    assert load_model(spec).determined_by != first


def test_code_in_no_file_determines_nothing(monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    source = load_model(spec)
    monkeypatch.delattr(sys.modules[spec.split(":")[1]], "__file__")
    assert source.determined_by == ""
