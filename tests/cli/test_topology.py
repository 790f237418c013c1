"""What a plan knows of nodes: in its text, in the Slurm job, and priced on another cluster."""

import re
from pathlib import Path

import pytest

from meshwright.cli import main
from meshwright.ir.text.plan_text import format_plan, parse_plan

SIZES = ["--seq", "32", "--global-batch", "8", "--no-search"]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight data-parallel ranks on two nodes of four."""
    path = tmp_path_factory.mktemp("topology") / "plan.txt"
    assert main(["plan", "tiny", *SIZES, "--cluster", "h100:4x2", "-o", str(path)]) == 0
    return path


def test_the_slurm_job_asks_for_the_nodes_of_the_plan(plan: Path, tmp_path: Path) -> None:
    assert main(["compile", str(plan), "-o", str(tmp_path)]) == 0
    job = (tmp_path / "job.sbatch").read_text()
    assert "#SBATCH --nodes=2\n" in job and "#SBATCH --gpus-per-node=4\n" in job


def test_a_plan_that_does_not_say_it_has_nodes_of_eight(plan: Path) -> None:
    text = plan.read_text()
    assert parse_plan(text).devices_per_node == 4
    older = parse_plan(text.replace("devices_per_node: 4\n", ""))
    assert older.devices_per_node == 8 and "devices_per_node: 8\n" in format_plan(older)


def _explain(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, float]:
    """The text, and the step time in it."""
    capsys.readouterr()
    assert main(["explain", *words]) == 0
    text = capsys.readouterr().out
    match = re.search(r"predicted step: ([\d.,e+]+) ms", text)
    assert match is not None, text
    return text, float(match[1].replace(",", ""))


def test_explain_prices_on_the_cluster_that_it_is_given(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, own_us = _explain(capsys, str(plan))
    same, same_us = _explain(capsys, str(plan), "--cluster", "h100:4x2")
    other, other_us = _explain(capsys, str(plan), "--cluster", "a100:8")
    assert same == own and same_us == own_us
    assert other.startswith("note: made for h100:4x2; the numbers are for a100:8\n")
    assert other_us != own_us


def test_explain_refuses_a_cluster_that_is_too_small(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(plan), "--cluster", "h100:4"]) == 2
    assert "the plan takes 8 devices, it holds 4" in capsys.readouterr().err
