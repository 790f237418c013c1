"""bf16 against float32 over 200 steps of the demo corpus, and steps that are not finite."""

import json
from pathlib import Path

import pytest

from meshwright.cli import main

SIZES = ["--seq", "32", "--global-batch", "8", "--cluster", "cpu:2", "--pin", "dp=2", "--no-search"]
RUN = ["--data", "demo", "--no-compile", "--eval-batches", "1", "--lr", "2e-3"]
PURE = ["--dtype", "bf16", "--pin", "precision=pure"]
PLANS = {
    "f32": ["--dtype", "f32"],
    "bf16": [*PURE, "--pin", "rounding=nearest", "--pin", "zero=1"],
    "stochastic": [*PURE, "--pin", "rounding=stochastic", "--pin", "zero=2"],
    "master": ["--dtype", "bf16", "--pin", "zero=3"],
}


def _program(folder: Path, name: str) -> str:
    plan, program = str(folder / f"{name}.txt"), str(folder / name)
    assert main(["plan", "tiny-llama", *SIZES, *PLANS[name], "-o", plan]) == 0
    assert main(["compile", plan, "-o", program]) == 0
    return program


def _run(folder: Path, name: str, *more: str) -> list[float]:
    out = str(folder / f"{name}_run")
    assert main(["run", _program(folder, name), *RUN, "--out", out, *more]) == 0
    rows = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


# Mean relative distance to float32's losses after the first 20 steps, at most.
BOUNDS = {"master": 0.005, "stochastic": 0.008, "bf16": 0.02}


@pytest.mark.long
@pytest.mark.parametrize("steps", ["60", "200"])
def test_every_precision_follows_float32_within_bounds(tmp_path: Path, steps: str) -> None:
    runs = {name: _run(tmp_path, name, "--steps", steps) for name in PLANS}

    def distance(name: str) -> float:
        pairs = list(zip(runs[name][20:], runs["f32"][20:], strict=True))
        return sum(abs(a - b) / b for a, b in pairs) / len(pairs)

    found = {name: distance(name) for name in BOUNDS}
    print(found)
    assert all(found[name] < bound for name, bound in BOUNDS.items()), found
    assert found["master"] < found["stochastic"] < found["bf16"], found


def test_a_step_that_is_not_finite_stops_with_both_numbers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    again = ["run", _program(tmp_path, "f32"), *RUN[:-1], "1e30", "--steps", "4", "--warmup", "0"]
    capfd.readouterr()
    assert main([*again, "--out", str(tmp_path / "stopped")]) == 2
    error = capfd.readouterr().err
    assert "not finite" in error and "--on-nan skip" in error
    assert main([*again, "--out", str(tmp_path / "skipped"), "--on-nan", "skip"]) == 0
