"""The job files of examples/: each parses and plans as it stands."""

import runpy
from pathlib import Path

import pytest
from house.rooms import ROOT

from meshwright.api import jobs
from meshwright.runtime.launch.job import load_job

TUTORIAL = ROOT / "docs" / "tutorial.md"
JOBS = sorted((ROOT / "examples").glob("*.toml"))


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_a_job_plans(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = load_job(path, [])
    if job.model.startswith("hf:"):
        script = runpy.run_path(str(ROOT / "examples" / "hf_folder.py"))
        script["main"](job.model.removeprefix("hf:"))
    jobs._write_job(job, tmp_path / "run", False, None, lambda _: None)
    plan = (tmp_path / "run" / "plan.txt").read_text()
    mesh = next(line for line in plan.splitlines() if line.startswith("mesh: "))
    pins = dict(pin.split("=") for pin in job.plan["pin"])
    assert all(f"{axis}={pins[axis]}" in mesh for axis in ("pp", "dp", "tp") if axis in pins)
    assert f"meshwright train examples/{path.name} --out runs/" in path.read_text()


def test_the_tutorial_shows_the_demo_as_it_is() -> None:
    """Who has no checkout copies it from there."""
    assert (ROOT / "examples" / "demo.toml").read_text() in TUTORIAL.read_text()
