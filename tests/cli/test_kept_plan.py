"""A job's plan is taken again where all that it was made from is the same."""

from pathlib import Path

import pytest

from meshwright.api import jobs
from meshwright.runtime.launch.job import load_job

JOB = 'model = "tiny"\n[plan]\ncluster = "cpu:1"\nseq = 16\nglobal_batch = 2\nsearch = false\n'


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Models that were planned, and not taken as they were."""
    found: list[str] = []
    make = jobs.plan

    def counting(source, **words):
        found.append(source.name)
        return make(source, **words)

    monkeypatch.setattr(jobs, "plan", counting)
    return found


def _write(folder: Path, *changes: str) -> str:
    """Plan a job into the folder; return the plan's text."""
    path = folder / "job.toml"
    path.write_text(JOB)
    jobs._write_job(load_job(path, list(changes)), folder / "run", False, lambda _: None)
    return (folder / "run" / "plan.txt").read_text()


def test_a_job_is_planned_again_only_where_something_changed(
    tmp_path: Path, planned: list[str]
) -> None:
    first = _write(tmp_path)
    assert _write(tmp_path, "run.steps=9") == first and len(planned) == 1
    assert "seq: 32" in _write(tmp_path, "plan.seq=32") and len(planned) == 2
    path = tmp_path / "run" / "plan.txt"
    path.write_text(path.read_text().replace("zero: 0", "zero: 1"))
    assert "zero: 0" in _write(tmp_path, "plan.seq=32") and len(planned) == 3, "changed by hand"
