"""Pictures and trackers of runs."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from meshwright.cli import main
from meshwright.runtime.metrics import plot
from meshwright.runtime.metrics.step_log import StepLog
from meshwright.runtime.metrics.trackers import TrackerError, check_tracker, open_tracker
from meshwright.runtime.training import goodput, past_run, run_folder
from meshwright.runtime.training.goodput import Goodput


def run_in(folder: Path, steps: int) -> Path:
    folder.mkdir()
    said = {"lr": 0.1, "grad_norm": 1.0, "tokens_per_s": 100.0, "peak_memory_bytes": 2**30}
    rows = [
        {"step": n, "loss": 5.0 / (n + 1), "elapsed_s": n % 3 + 1.0, "tokens_seen": 4 * n, **said}
        for n in range(steps)
    ]
    rows.append({"step": steps - 1, "eval_loss": 1.0, "eval_tokens": 5})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    row = {"predicted": 2.0, "measured": 1.0, "error": 1.0}
    (folder / "fidelity.json").write_text(json.dumps({"step_us": row}))
    return folder


def test_runs_are_drawn_with_their_names_and_titles(tmp_path: Path) -> None:
    runs = [str(run_in(tmp_path / name, 5)) for name in ("first", "second")]
    out = tmp_path / "runs.svg"
    assert main(["plot", *runs, "-o", str(out)]) == 0
    text = out.read_text()
    for said in ("first, held out", "second", "tokens a second", "predicted / measured"):
        assert f"<!-- {said} -->" in text, said


def test_goodput_is_a_bar_of_a_run_that_describes_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = run_in(tmp_path / "run", 5), tmp_path / "runs.svg"
    monkeypatch.setattr(past_run, "read_run", lambda _: None)
    found = Goodput(10.0, 9.0, 0.0, 0.0, 1.0, 0.0, 1)
    monkeypatch.setattr(goodput, "goodput", lambda _: found)
    assert main(["plot", str(run), "-o", str(out)]) == 0
    assert "<!-- goodput -->" in out.read_text()


def test_curves_lie_along_tokens_or_the_time_of_all_starts() -> None:
    rows = [
        {"step": 0, "loss": 3.0, "tokens_seen": 4_000_000, "elapsed_s": 1800.0},
        {"step": 1, "loss": 2.0, "tokens_seen": 8_000_000, "elapsed_s": 3600.0},
        {"step": 1, "eval_loss": 2.5},
        {"step": 2, "loss": 1.0, "tokens_seen": 12_000_000, "elapsed_s": 900.0},
    ]
    assert plot._Curves(rows, "tokens").of("loss") == ([4.0, 8.0, 12.0], [3.0, 2.0, 1.0])
    assert plot._Curves(rows, "time").of("loss")[0] == [0.5, 1.0, 1.25]
    assert plot._Curves(rows, "time").of("eval_loss") == ([1.0], [2.5])
    assert plot.smoothed([4.0, 2.0, 0.0], 2) == [4.0, 3.0, 1.0]


def test_a_long_run_is_framed_by_what_follows_its_first_steps(tmp_path: Path) -> None:
    run, out = run_in(tmp_path / "long", 60), tmp_path / "runs.svg"
    words = ["plot", str(run), "-o", str(out), "--x", "tokens", "--smooth"]
    assert main([*words, "5"]) == 0
    text = out.read_text()
    for said in ("the first steps lie above", "gradient norm", "tokens, millions", "learning rate"):
        assert f"<!-- {said} -->" in text, said
    assert main([*words, "0"]) == 2


def test_a_folder_without_a_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", str(tmp_path), "-o", str(tmp_path / "a.png")]) == 2
    assert "holds no metrics.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "a.png").exists()


class Kept:
    """Remembers rows."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.closed = False

    def row(self, step: int, values: dict[str, float]) -> None:
        self.rows.append((step, values))

    def close(self) -> None:
        self.closed = True


def test_a_tracker_takes_every_row_without_its_nulls(tmp_path: Path) -> None:
    kept = Kept()
    with StepLog(
        tmp_path / "m.jsonl", flops_per_token=1.0, peak_flops=None, say=None, tracker=kept
    ) as log:
        log.step(
            3, loss=float("nan"), lr=0.1, grad_norm=1.0, tokens=4, tokens_seen=16, step_ms=2.0,
            peak_memory_bytes=7,
        )  # fmt: skip
        log.evaluation(3, eval_loss=0.5, tokens=2, batches=1, batches_held_out=9, data="demo")
    (step, row), evaluation = kept.rows
    assert step == 3 and row["lr"] == 0.1 and "loss" not in row and "mfu" not in row
    assert evaluation == (3, {"eval_loss": 0.5}) and kept.closed


def test_tensorboard_gets_event_files(tmp_path: Path) -> None:
    """A resumed run's rows stand in place of those that were logged past its checkpoint."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for first, loss in ((0, 2.0), (2, 1.0)):
        tracker = open_tracker("tensorboard", tmp_path, {}, first)
        assert tracker is not None
        for step in range(first, first + 4):
            tracker.row(step, {"loss": loss})
        tracker.close()
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    found = [(event.step, event.value) for event in read.Scalars("loss")]
    assert found == [(0, 2.0), (1, 2.0), (2, 1.0), (3, 1.0), (4, 1.0), (5, 1.0)]


class Wandb(ModuleType):
    """Stands for the library: one run a call of init, with an id of its own unless one is given."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.ids: list[str | None] = []
        self.rows: list[dict] = []

    def init(self, *, id: str | None, resume: str, **_: object) -> SimpleNamespace:
        self.ids.append(id)
        assert resume == "allow"
        return SimpleNamespace(
            id=id or f"run{len(self.ids)}",
            log=self.rows.append,
            finish=lambda: None,
            define_metric=lambda name, step_metric: None,
        )


def test_a_resumed_run_goes_on_with_its_run_of_wandb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a new one in the same folder does not. Steps may come again: wandb's own may not."""
    library = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", library)
    for first in (0, 2, 0):
        if first == 0:
            run_folder.begin(tmp_path)
        tracker = open_tracker("wandb", tmp_path, {}, first)
        assert tracker is not None
        tracker.row(first, {"loss": 1.0})
        tracker.close()
    assert library.ids == [None, "run1", None]
    assert library.rows == [{"train_step": step, "loss": 1.0} for step in (0, 2, 0)]


def test_a_tracker_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(TrackerError, match="pip install wandb"):
        open_tracker("wandb", tmp_path, {}, 0)
    with pytest.raises(TrackerError, match="pip install wandb"):
        check_tracker("wandb")
    for name in ("none", "tensorboard"):
        check_tracker(name)


def test_a_folder_called_as_a_tracker_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as wandb leaves where it ran."""
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(TrackerError, match="pip install wandb"):
        check_tracker("wandb")
