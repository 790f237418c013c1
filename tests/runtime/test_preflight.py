"""What a preflight says of machines that are slower than planned."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.cli import main
from meshwright.runtime.metrics.health import GpuHealth, complaints
from meshwright.runtime.probe.preflight import Preflight, RankRead, slow_hosts, verdict

RANKS = tuple(RankRead(n, f"node{n // 2}", "H200", 700e12, 4e12) for n in range(4))
FOUND = Preflight(RANKS, "bfloat16", 2**28, 2000.0, 1000.0, 1.0)
PLAN = {
    "matmul_per_s": 710e12,
    "copy_per_s": 4.3e12,
    "all_reduce_us": 1900.0,
    "all_gather_us": 990.0,
}


def slowed(rank: int, matmul: float) -> Preflight:
    ranks = list(RANKS)
    ranks[rank] = replace(ranks[rank], matmul=matmul)
    return replace(FOUND, ranks=tuple(ranks))


def test_what_runs_as_planned_is_not_talked_about() -> None:
    assert verdict(FOUND, PLAN) == []


def test_a_slow_node_is_named_with_both_numbers() -> None:
    (line,) = said = verdict(slowed(3, 400e12), PLAN)
    assert line == (
        "node1: rank 3 (H200) does 400.0 Tflop/s of matmul, the plan assumes 710.0 Tflop/s"
    )
    assert slow_hosts(said) == ["node1"]


def test_a_bad_card_and_another_version_are_named_by_their_host() -> None:
    """By policy the run goes on without the nodes that are named."""
    ranks = [replace(one, versions="torch 2.13") for one in RANKS]
    bad = GpuHealth(3, "H200", 88, 900, 1980, 650.0, 2, 0x40)
    ranks[1] = replace(ranks[1], card=tuple(complaints(None, bad)))
    ranks[2] = replace(ranks[2], versions="torch 2.12")
    said = verdict(replace(FOUND, ranks=tuple(ranks)), PLAN)
    assert said == [
        "node0: rank 1: GPU 3 (H200): 2 memory errors that ECC cannot correct (0 before)",
        "node0: rank 1: GPU 3 (H200): slowed down to 900 of 1980 MHz at 88 C (reasons 0x40)",
        "node1: rank 2 runs torch 2.12, most ranks run torch 2.13",
    ]
    assert slow_hosts(said) == ["node0", "node1"]


def test_without_a_plan_a_node_is_compared_with_the_others() -> None:
    (line,) = verdict(slowed(0, 400e12), {})
    assert line.startswith("node0: rank 0") and "half of all ranks do 700.0 Tflop/s" in line


def test_slow_links_are_nobodys_alone() -> None:
    said = verdict(replace(FOUND, all_reduce_us=9000.0), PLAN)
    assert said[0].startswith("all hosts: all_reduce of 256 MiB over all ranks takes 9,000 us")
    assert slow_hosts(said) == []


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("preflight")
    sizes = ["--seq", "8", "--global-batch", "2", "--cluster", "cpu:2", "--no-search"]
    assert main(["plan", "tiny", *sizes, "-o", str(folder / "plan.txt")]) == 0
    assert main(["compile", str(folder / "plan.txt"), "-o", str(folder / "program")]) == 0
    return folder / "program"


def test_the_command_reads_this_machine(program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Two ranks; the plan assumes what no machine does, then what every machine does."""
    for rate, code in ((1e18, 1), (1.0, 0)):
        plan = {"matmul_per_s": rate, "copy_per_s": 1.0, "all_reduce_us": 1e9, "all_gather_us": 1e9}
        (program / "rates.json").write_text(json.dumps(plan))
        capfd.readouterr()
        assert main(["preflight", str(program), "--json"]) == code
        found = json.loads(capfd.readouterr().out)
        assert [r["rank"] for r in found["ranks"]] == [0, 1] and found["all_reduce_us"] > 0
        assert len(found["slow"]) == 2 * code


def test_a_run_stops_before_its_first_step(program: Path, tmp_path: Path) -> None:
    (program / "rates.json").write_text('{"matmul_per_s": 1e18}')
    words = ["--steps", "1", "--no-compile", "--preflight", "stop", "--out", str(tmp_path / "run")]
    assert main(["run", str(program), *words]) == 5
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
