"""The example runs as it stands, and docs/api.md names what the package's root exports."""

import runpy
import sys
from pathlib import Path

import pytest
from house.rooms import ROOT
from torch import nn

import meshwright
from meshwright.api import EXPORTS

EXAMPLE = ROOT / "examples" / "api.py"


def test_the_example_plans_compiles_and_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))  # as where Python runs it
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tmp_path)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capfd.readouterr().out
    result = meshwright.RunResult.load(tmp_path / "run")
    assert result.state == "stopped" and result.loss < 0.5 < result.losses[0]
    assert f"stopped at a loss of {result.loss:.3f}: {result.checkpoints[-1]}" in said
    assert len(EXAMPLE.read_text().splitlines()) < 40


def test_the_page_names_every_export() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    assert [name for name in EXPORTS if f"`{name}" not in page] == []


def test_a_module_that_is_built_is_refused_with_the_way_out() -> None:
    with pytest.raises(meshwright.MeshwrightError, match="def build.*return Linear.*py:module"):
        meshwright.load_model(nn.Linear(2, 2))  # type: ignore[arg-type]


def test_errors_of_every_room_are_of_one_class(tmp_path: Path) -> None:
    job = meshwright.Job(seq=8, global_batch=4)
    with pytest.raises(meshwright.MeshwrightError, match="nearest: tiny"):
        meshwright.plan("tinny", cluster="cpu:2", job=job)
    with pytest.raises(meshwright.MeshwrightError, match="holds no program"):
        meshwright.run(tmp_path, steps=1)
    (tmp_path / "plan.txt").write_text("no plan")
    with pytest.raises(meshwright.MeshwrightError, match="plan.txt: "):
        meshwright.Plan.load(tmp_path / "plan.txt")
