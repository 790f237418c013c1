"""A run with dropout: another plan goes on with its draws, and an evaluation draws nothing."""

import json
from pathlib import Path

import pytest
import torch
from dropped_model import VOCAB, first

from meshwright.cli import main
from meshwright.ir.capture.export import trace
from meshwright.proof.module_run import built, weights_of
from meshwright.proof.one_rank import Variant, one_rank_plan
from meshwright.proof.outcome import random_batch
from meshwright.proof.program import run_program
from meshwright.runtime.engine.executor import Executor

DATA = f"random:{VOCAB}:3"
PLANS = {
    "one": ["--cluster", "cpu:1", "--pin", "micro_batch=4"],
    "split": ["--cluster", "cpu:2", "--pin", "dp=2", "--pin", "zero=2", "--pin", "micro_batch=1"],
}
RUN = ["--data", DATA, "--no-compile", "--schedule", "constant", "--steps", "4"]
RUN += ["--eval-batches", "1"]


def _rows(run: Path, key: str) -> dict[int, float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row[key] for row in rows if key in row}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of every plan, and a run of the first with a checkpoint after step 2."""
    top = tmp_path_factory.mktemp("dropped")
    for name, options in PLANS.items():
        sizes = ["--seq", "16", "--global-batch", "8", "--dtype", "f64", "--no-search"]
        plan = str(top / f"{name}.txt")
        assert main(["plan", "py:dropped_model:first", *sizes, *options, "-o", plan]) == 0
        assert main(["compile", plan, "-o", str(top / name)]) == 0
    run = ["run", str(top / "one"), *RUN, "--save-every", "2", "--out", str(top / "first")]
    assert main(run) == 0
    return top


def test_another_plan_goes_on_with_the_same_draws(folder: Path) -> None:
    start = (folder / "first" / "checkpoints" / "step_00000002").resolve()
    out = folder / "second"
    assert (
        main(["run", str(folder / "split"), *RUN, "--resume", str(start), "--out", str(out)]) == 0
    )
    whole, resumed = _rows(folder / "first", "loss"), _rows(out, "loss")
    assert sorted(resumed) == [2, 3]
    for step, loss in resumed.items():
        assert abs(loss - whole[step]) <= 1e-12 * abs(whole[step])


def test_an_evaluation_drops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the module's eval() does, with the same weights."""
    traced = trace(first, "dropped", "f64", VOCAB)
    module = built(first, torch.float64).eval()
    batch = random_batch(4, 12, VOCAB, 0)

    def evaluate(self: Executor, inputs: list, count: int, lr: float) -> tuple[float, float]:
        return self.evaluate(inputs, count), 0.0

    expected = float(batch.loss(module(batch.tokens)).detach())
    plan = one_rank_plan(traced, Variant(2, 12, 2, keeps=True))
    trained = run_program(plan, weights_of(module), batch).loss
    monkeypatch.setattr(Executor, "train_step", evaluate)
    found = run_program(plan, weights_of(module), batch).loss
    assert abs(found - expected) <= 1e-12 * expected < abs(found - trained)
