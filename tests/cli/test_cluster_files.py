"""A plan for a cluster of one's own holds that cluster: its file may change, or be gone."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright.api.plans import read_plan
from meshwright.cli import main
from meshwright.ir.text.plan_text import format_plan, parse_plan
from meshwright.planner.hardware.cluster_file import cluster_of, parse_cluster

SIZES = ["--seq", "8", "--global-batch", "4", "--effort", "fast"]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder, with own.txt, for a cluster that is gone, and cpu.txt, for one of the
    catalogue."""
    folder = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        _write_plans(folder / "mine.toml")
        yield folder


def _write_plans(file: Path) -> None:
    assert main(["clusters", "new", "mine.toml", "--like", "cpu:2"]) == 0
    file.write_text(re.sub(r"launch_us = \S+", "launch_us = 7.0", file.read_text(), count=1))
    for cluster, name in (("mine.toml", "own.txt"), ("cpu:2", "cpu.txt")):
        assert main(["plan", "tiny-llama", "--cluster", cluster, *SIZES, "-o", name]) == 0
    file.unlink()


def test_a_plan_holds_the_cluster_of_a_file(own: Path) -> None:
    plan = read_plan(own / "own.txt")
    assert "[[levels]]" in plan.cluster_text and parse_plan(format_plan(plan)) == plan
    assert cluster_of(plan).device.launch_us == 7.0
    other = read_plan(own / "cpu.txt")
    assert other.cluster_text == "" and cluster_of(other) == parse_cluster("cpu:2")


@pytest.mark.parametrize(
    "words",
    [
        ["diff", "own.txt", "cpu.txt"],
        ["explain", "own.txt", "--timeline", "step.svg"],
        ["explain", "own.txt", "--why-not", "recompute=all"],
    ],
)
def test_it_is_explained_without_the_file(
    own: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    assert "mine" in capsys.readouterr().out


def test_its_program_knows_the_rates(own: Path) -> None:
    assert main(["compile", "own.txt", "-o", "program"]) == 0
    assert json.loads((own / "program" / "rates.json").read_text())["matmul_per_s"] > 0


def test_a_damaged_cluster_is_named(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (own / "own.txt").read_text().replace("  launch_us = 7.0", "  launch_us = -7.0")
    (own / "damaged.txt").write_text(text)
    assert main(["diff", "damaged.txt", "cpu.txt"]) == 2
    assert "[cluster] mine of the plan" in capsys.readouterr().err
