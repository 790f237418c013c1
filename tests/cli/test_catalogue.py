"""`models` and `clusters`: what they list is what plans take."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from meshwright.cli import main
from meshwright.models import PRESETS
from meshwright.models.decoder import Decoder
from meshwright.planner.hardware.catalogue import CATALOGUE
from meshwright.planner.hardware.cluster import ClusterError
from meshwright.planner.hardware.cluster_file import format_cluster, parse_cluster
from meshwright.planner.units import parse_bytes

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_are_counted_as_the_module_has_them(name: str) -> None:
    with torch.device("meta"):
        module = Decoder(PRESETS[name])
    assert PRESETS[name].num_parameters == sum(p.numel() for p in module.parameters())


def test_models_alone_lists_the_classes_that_were_checked(capsys: Capture) -> None:
    assert main(["models", "--json"]) == 0
    alone = capsys.readouterr().out
    assert main(["models", "classes", "--json"]) == 0
    assert capsys.readouterr().out == alone
    assert main(["models"]) == 0
    assert "\nllama  " in capsys.readouterr().out


def test_models_are_listed_and_shown(capsys: Capture) -> None:
    assert main(["models", "list"]) == 0
    assert "llama-7b" in capsys.readouterr().out
    assert main(["models", "show", "llama-7b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["layers"] == PRESETS["llama-7b"].layers
    assert main(["models", "show", "lama-7b"]) == 2
    assert "nearest: llama-7b" in capsys.readouterr().err


def test_clusters_are_listed_and_shown_as_files_have_them(capsys: Capture) -> None:
    assert main(["clusters", "list", "--json"]) == 0
    assert [c["name"] for c in json.loads(capsys.readouterr().out)["clusters"]] == list(CATALOGUE)
    assert main(["clusters", "show", "h100:8x2"]) == 0
    assert capsys.readouterr().out == format_cluster(parse_cluster("h100:8x2"))


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_new_file_explains_its_entries_and_is_the_same_cluster(
    name: str, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "mine.toml"
    assert main(["clusters", "new", str(path), "--like", name]) == 0
    assert parse_cluster(str(path)) == replace(parse_cluster(name), name="mine")
    assert (
        f"memory_bytes = {CATALOGUE[name].device.memory_bytes}  # of a device" in path.read_text()
    )
    assert main(["clusters", "new", str(path)]) == 2
    assert "exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"), [("24GiB", 24 * 2**30), ("80 GB", 80 * 10**9), ("1.5tib", 3 * 2**39)]
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_bytes(text) == size


def test_a_memory_of_ones_own_is_in_the_name_and_the_coverage() -> None:
    cluster = parse_cluster("rtx4090:2,gpu_memory=20GiB,host_memory=64GiB")
    assert (cluster.device.memory_bytes, cluster.host_memory_bytes) == (20 * 2**30, 64 * 2**30)
    assert parse_cluster(cluster.name) == cluster
    assert ("memory_bytes", "given: 20GiB") in cluster.device.sources


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("h200:1,gpu_memory=lots", "'lots' is no size in bytes; write it as 24GiB"),
        ("h200:1,gpu_memory=0GiB", "is no size"),
        ("h200:1,ram=3GiB", "'ram=3GiB' is unknown; give gpu_memory or host_memory"),
        ("h100:8x2,network=token-ring", "'token-ring' is unknown; give infiniband, roce, efa"),
    ],
)
def test_what_is_no_memory_is_refused(spec: str, said: str) -> None:
    with pytest.raises(ClusterError, match=said):
        parse_cluster(spec)


def test_plan_takes_memories_and_explain_prices_with_them(tmp_path: Path, capsys: Capture) -> None:
    plan = str(tmp_path / "plan.txt")
    sizes = ["--seq", "32", "--global-batch", "4", "--no-search", "--trust-capture"]
    words = ["--cluster", "h200:1", "--gpu-memory", "12GiB", "-o", plan]
    assert main(["plan", "tiny-llama", *sizes, *words]) == 0
    assert "cluster: h200:1,gpu_memory=12GiB" in Path(plan).read_text()
    assert main(["explain", plan]) == 0
    assert main(["plan", "tiny-llama", *sizes, "--gpu-memory", "much", "-o", plan]) == 2
    assert "no size in bytes" in capsys.readouterr().err
