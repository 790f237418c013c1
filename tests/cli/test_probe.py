"""Probe measures this machine's CPU ranks and writes a cluster file that plan takes."""

from functools import partial
from pathlib import Path

import pytest
import torch

from meshwright import Job, plan
from meshwright.api import probing
from meshwright.api.demands import Cluster
from meshwright.api.here import AUTO, WITHOUT_GPUS, at_hand
from meshwright.cli import main
from meshwright.planner.hardware.cluster import COLLECTIVES
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.runtime.probe import compute
from meshwright.runtime.probe.timing import Reading


def test_a_plan_is_made_from_what_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probing, "MOST_CPU_RANKS", 2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    path = tmp_path / "here.toml"
    assert main(["probe", "-o", str(path)]) == 0
    assert f"plan with --cluster {path}, or auto here" in capsys.readouterr().out
    found = parse_cluster(str(path))
    assert (found.name, found.num_devices) == ("here", 2)
    (link,) = found.levels
    assert {(c.collective, c.group) for c in link.curves} == {(k, 2) for k in COLLECTIVES}
    for curve in link.curves:
        assert curve.points[-1][1] > curve.points[0][1] > 0  # 16 MiB take longer than 64 KiB
    device, sources = found.device, dict(found.device.sources)
    assert {"f32", "f64", "bf16", "hbm_bytes_per_s", "launch_us"} <= sources.keys()
    assert all(sources[k].startswith("measured") for k in ("f32", "hbm_bytes_per_s", "launch_us"))
    assert sources["memory_bytes"].startswith("not measured; of CPU rank")
    assert device.matmul_rate("f32") > device.matmul_rate("f64")
    made = plan("tiny-llama", cluster=str(path), job=Job(seq=64, global_batch=8, effort="fast"))
    assert made.costs["predicted_step_us"] > 0
    told: list[str] = []
    assert at_hand(Cluster(AUTO), told.append).spec == str(path)
    assert told == [f"planning for this machine as `meshwright probe` measured it: {path}"]
    path.unlink()
    assert at_hand(Cluster(AUTO), told.append).spec == WITHOUT_GPUS


@pytest.mark.parametrize("depth", [0.0, 131.0])
def test_the_depth_of_tiles_follows_from_two_rates(
    depth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products timed as if their contracted dimension were longer by `depth` give `depth` back."""

    def seconds(work: partial, device: torch.device, budget_s: float) -> Reading:
        rows, contracted = work.args[0].shape
        took = rows * work.args[1].shape[1] * (contracted + depth) * 1e-12
        return Reading(took, took, took, 1)

    monkeypatch.setattr(compute, "seconds_of", seconds)
    cpu = torch.device("cpu")
    read = compute.tile_depth(cpu, compute.extent_of(cpu, full=False))
    assert read.median == pytest.approx(depth, abs=1e-6) and read.count == 3
