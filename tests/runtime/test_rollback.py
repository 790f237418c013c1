"""A spike in the loss: the run goes back to its newest checkpoint and skips the batch."""

import json
import math
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from meshwright.cli import main
from meshwright.runtime.checkpoint.manifest import digest_of, sha256
from meshwright.runtime.optimizers.bad_step import BadStepError
from meshwright.runtime.training.loss_guard import MAX_ROLLBACKS, LossGuard

SEQ, ROWS, STEPS = 16, 4, 60


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rollback")
    sizes = ["--seq", str(SEQ), "--global-batch", str(ROWS), "--cluster", "cpu:2", "--no-search"]
    plan = str(folder / "plan.txt")
    assert main(["plan", "tiny-llama", *sizes, "--pin", "dp=2", "-o", plan]) == 0
    assert main(["compile", plan, "-o", str(folder / "program")]) == 0
    rng = random.Random(0)
    noise = bytes(rng.randrange(256) for _ in range(SEQ))
    calm = b"a" * (SEQ * ROWS * STEPS // 2)
    (folder / "corpus.bin").write_bytes(calm + noise + calm + b"a" * 2000)
    return folder


def run(program: Path, out: Path, *more: str) -> int:
    words = ["run", str(program / "program"), "--data", f"file:{program / 'corpus.bin'}"]
    words += ["--no-compile", "--steps", str(STEPS), "--warmup", "0", "--schedule", "constant"]
    words += ["--lr", "3e-3", "--eval-batches", "1", "--save-every", "5", "--out", str(out)]
    return main([*words, "--spike", "3", *more])


def rows(out: Path) -> list[dict]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "loss" in row]


def test_a_spike_is_rolled_back_and_its_batch_passed_over(
    program: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run(program, out, "--on-nan", "rollback") == 0
    said = capfd.readouterr().err
    assert said.count("rolled back to step") == 1 and "a spike, above" in said
    found = rows(out)
    assert [row["step"] for row in found] == list(range(STEPS))
    newest = json.loads((out / "checkpoints" / f"step_{STEPS:08d}" / "manifest.json").read_text())
    state = newest["state"]
    assert 1 <= state["skipped"] <= 5 and state["updates"] == STEPS
    assert state["samples"] == (STEPS + state["skipped"]) * ROWS
    # Taken up again past the rollback, the run has the same losses to the bit.
    later = min(
        p for p in sorted((out / "checkpoints").glob("step_*"))
        if json.loads((p / "manifest.json").read_text())["state"]["skipped"]
    )  # fmt: skip
    again = tmp_path / "again"
    assert run(program, again, "--on-nan", "rollback", "--resume", str(later)) == 0
    first = {row["step"]: row["loss"] for row in found}
    assert rows(again) and all(row["loss"] == first[row["step"]] for row in rows(again))


@pytest.mark.long
def test_a_spike_stops_the_run_or_is_skipped_by_policy(
    program: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(program, tmp_path / "stop", "--on-nan", "stop") == 2
    error = capfd.readouterr().err
    assert "a spike, above" in error and "nothing was updated" in error
    assert run(program, tmp_path / "skip", "--on-nan", "skip") == 0
    manifest = tmp_path / "skip" / "checkpoints" / f"step_{STEPS:08d}" / "manifest.json"
    assert json.loads(manifest.read_text())["state"]["updates"] == STEPS - 1


def test_without_a_checkpoint_there_is_nothing_to_roll_back_to(
    program: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(program, tmp_path / "run", "--on-nan", "rollback", "--save-every", "90") == 2
    assert "there is no checkpoint" in capfd.readouterr().err


def poisoned(checkpoint: Path) -> None:
    """Its weights become no numbers, as in a run that saved them so; its digests are right."""
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    for entry in manifest["ranks"]:
        file = checkpoint / entry["file"]
        tensors = load_file(file)
        save_file({name: torch.full_like(t, math.nan) for name, t in tensors.items()}, file)
        entry |= {"bytes": file.stat().st_size, "sha256": sha256(file)}
    path.write_text(json.dumps(manifest | {"sha256": digest_of(manifest)}))


@pytest.mark.long
def test_a_checkpoint_whose_weights_are_no_numbers_is_passed_over(
    program: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["--on-nan", "rollback", "--steps", "15", "--keep", "0"]
    assert run(program, out, *words) == 0
    folder = out / "checkpoints"
    for step in (10, 15):
        poisoned(folder / f"step_{step:08d}")
    capfd.readouterr()
    assert run(program, out, *words, "--steps", "18", "--resume", "auto") == 0
    said = capfd.readouterr().err
    for step in (15, 10):
        assert said.count(f"passed over the checkpoint after {step} steps") == 1
    assert said.count("rolled back to step 5,") == 1 and said.count("rolled back to") == 3
    assert [row["step"] for row in rows(out)] == list(range(18))
    assert [p.name for p in sorted(folder.iterdir())] == [
        f"step_{step:08d}" for step in (5, 10, 15, 18)
    ]
    aside = [p.name for p in sorted(out.glob("earlier-*/step_*"))]
    assert aside == ["step_00000015", "step_00000010"]


@pytest.mark.long
def test_rollbacks_end_where_no_checkpoint_is_any_good(
    program: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["--on-nan", "rollback", "--steps", "5"]
    assert run(program, out, *words) == 0
    kept = out / "checkpoints" / "step_00000005"
    poisoned(kept)
    assert run(program, out, *words, "--steps", "8", "--resume", "auto") == 2
    error = capfd.readouterr().err
    assert "first step after it was rolled back to step 5" in error and "none before it" in error
    assert kept.is_dir()


def test_a_spike_is_told_from_the_median_of_what_came_before() -> None:
    guard = LossGuard(2.0)
    assert guard.limit == float("inf")
    for loss in [1.0] * 10 + [100.0] + [3.0] * 5:
        guard.saw(loss)
    assert guard.limit == 2.0
    assert LossGuard(0.0).limit == float("inf")


def test_small_losses_may_vary_by_large_factors() -> None:
    guard = LossGuard(3.0)
    for loss in [0.01] * 20:
        guard.saw(loss)
    assert guard.limit == 1.01


def test_a_loss_that_is_no_number_leaves_the_median_whole() -> None:
    """A run that skips such steps still tells a spike from the rest."""
    guard = LossGuard(2.0)
    for loss in [float("nan"), 1.0] * 16:
        guard.saw(loss)
    assert guard.limit == 2.0
    guard.saw(float("inf"))
    assert guard.limit == 2.0


@pytest.mark.long
def test_a_resumed_run_judges_by_the_losses_before_it(program: Path, tmp_path: Path) -> None:
    """Interrupted just before the spike, it skips it as a run does that was not interrupted."""
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert run(program, whole, "--on-nan", "skip", "--keep", "0") == 0
    found = [row["loss"] for row in rows(whole)]
    spike = max(range(20, STEPS), key=lambda step: found[step] / found[step - 1])
    saved = spike // 5 * 5
    start = whole / "checkpoints" / f"step_{saved:08d}"
    assert run(program, part, "--on-nan", "skip", "--resume", str(start)) == 0
    assert [row["loss"] for row in rows(part)] == found[saved:]


def test_rollbacks_come_to_an_end() -> None:
    guard, error = LossGuard(2.0), BadStepError("loss nan")
    for _ in range(MAX_ROLLBACKS):
        guard.roll_back(error)
    with pytest.raises(BadStepError, match=f"after {MAX_ROLLBACKS} rollbacks"):
        guard.roll_back(error)
