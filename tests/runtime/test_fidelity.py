"""Predicted beside measured."""

import json
from pathlib import Path

import pytest
import torch

from meshwright.cli import main
from meshwright.runtime.training import fidelity

CPU = torch.device("cpu")


def test_the_median_after_warm_up_stands_beside_the_prediction(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"predicted": {"predicted_step_us": 3000.0}}')
    found = fidelity.compare(tmp_path, [90.0, 9.0, 9.0, 1.0, 2.0, 8.0], 5, CPU)
    assert found == {"step_us": {"predicted": 3000.0, "measured": 2000.0, "error": 0.5}}
    assert fidelity.lines(found) == [
        "step: measured 2.00 ms, predicted 3.00 ms: 33.3% faster than predicted"
    ]
    (line,) = fidelity.lines(found, "adamw")
    assert "predicted 3.00 ms for adamw: 33.3% faster" in line


def test_a_run_too_short_to_measure_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"predicted": {"predicted_step_us": 3000.0}}')
    assert fidelity.compare(tmp_path, [90.0, 9.0, 9.0], 5, CPU) == {}


def test_a_run_ends_with_the_comparison(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plan, program, run = (str(tmp_path / n) for n in ("plan.txt", "program", "run"))
    sizes = ["--seq", "32", "--global-batch", "4", "--cluster", "cpu:2"]
    assert main(["plan", "tiny-llama", *sizes, "--pin", "dp=2", "-o", plan]) == 0
    assert main(["compile", plan, "-o", program]) == 0
    options = ["--no-compile", "--steps", "5", "--eval-batches", "1", "--out", run]
    assert main(["run", program, *options, "--optimizer", "sgd"]) == 0
    assert "ms for adamw: " in capfd.readouterr().err
    row = json.loads((tmp_path / "run" / "fidelity.json").read_text())["step_us"]
    assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
