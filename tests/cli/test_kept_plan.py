"""A job's plan is taken again where all that it was made from is the same."""

from pathlib import Path

import pytest

from meshwright.api import jobs
from meshwright.api.errors import RunFailedError
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
    jobs._write_job(load_job(path, list(changes)), folder / "run", False, None, lambda _: None)
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


@pytest.mark.parametrize("code", [2, 1])
def test_a_run_that_is_refused_leaves_the_earlier_job_as_it_was(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _write(tmp_path)
    out = tmp_path / "run"
    before = {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    ready = jobs.prepare(tmp_path / "job.toml", overrides=["plan.seq=32"], out=out)
    assert "seq: 32" in (out / "plan.txt").read_text() and (out / "earlier-001").is_dir()

    def refuse(*given: object, **words: object) -> None:
        raise RunFailedError(code, "error: --steps 60 is less than 70")

    monkeypatch.setattr(jobs, "Trainer", refuse)
    said: list[str] = []
    with pytest.raises(RunFailedError):
        ready.train(say=said.append)
    if code == 2:
        assert (out / "plan.txt").read_text() == first
        assert {p.name: p.stat().st_mtime_ns for p in out.iterdir()} == before
        assert said[-1] == f"the run is refused: {out} holds the earlier job again"
    else:
        assert "seq: 32" in (out / "plan.txt").read_text()
