"""What a machine lacks for a program is said before its ranks start, and with both numbers."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from house.rooms import ROOT
from refusals import refused

from meshwright.cli import main
from meshwright.runtime.engine.layout import Layout, Param
from meshwright.runtime.launch import machine as machines
from meshwright.runtime.launch import readiness, worker
from meshwright.runtime.launch.machine import Gpu, Machine, read_machine
from meshwright.runtime.launch.readiness import Demand, Needs, mismatches, read_needs
from meshwright.runtime.optimizers.optimizer import RULES
from meshwright.runtime.optimizers.options import STORED, OptimizerOptions
from meshwright.runtime.training.options import RunOptions

GIB = 2**30
CARD = Gpu("NVIDIA H200", 140 * GIB)
NODE = Machine((CARD,) * 8, "2.13.0+cu130", "13.0", "580.95.05", 2000 * GIB, 64 * GIB, 900 * GIB)
NEEDS = Needs(
    device_type="cuda",
    device_name="NVIDIA H200 SXM",
    devices_per_node=8,
    ranks=8,
    rank_bytes=120 * GIB,
    offloaded_bytes=50 * GIB,
    trained_bytes=200 * GIB,
    frozen_bytes=0,
    optimizer="adamw",
)
HELD = Demand(NEEDS, ranks=8, checkpoint_bytes=600 * GIB)
NO_GPU = replace(NODE, gpus=())
CPU = replace(NEEDS, device_type="cpu", device_name="CPU rank", offloaded_bytes=0, rank_bytes=GIB)

# What is asked of which machine, and what is said of it, fact by fact.
TABLE = {
    "all there": (HELD, NODE, ()),
    "more than asked for": (replace(HELD, ranks=4), NODE, ()),
    "CPU ranks beside GPUs": (Demand(CPU, 8), NODE, ()),
    "no driver": (
        HELD,
        replace(NO_GPU, driver=""),
        (("planned for 8 NVIDIA H200 SXM", "finds 0 GPUs", "no NVIDIA driver", "cpu:N"),),
    ),
    "torch for CPUs": (
        HELD,
        replace(NO_GPU, torch="2.13.0+cpu", cuda=""),
        (("0 GPUs", "torch 2.13.0+cpu is built without CUDA"),),
    ),
    "old driver": (
        HELD,
        replace(NO_GPU, driver="535.12"),
        (("driver is 535.12", "torch 2.13.0+cu130 takes 580 or later"),),
    ),
    "hidden": (HELD, NO_GPU, (("driver 580.95.05", "CUDA_VISIBLE_DEVICES"),)),
    "no card of another maker": (
        replace(HELD, needs=replace(NEEDS, device_name="AMD Instinct MI300X")),
        NO_GPU,
        (("AMD Instinct MI300X", "0 GPUs", "built for them"),),
    ),
    "too few": (
        HELD,
        replace(NODE, gpus=(CARD,) * 4),
        (("8 ranks are to start", "4 GPUs", "plan for this machine"),),
    ),
    "all nodes' ranks on one": (
        Demand(replace(NEEDS, ranks=128, offloaded_bytes=0), ranks=128),
        NODE,
        (("128 ranks", "8 GPUs", "launch.sh on each of 16 nodes"),),
    ),
    "model": (
        HELD,
        replace(NODE, gpus=(Gpu("NVIDIA H100 80GB HBM3", 140 * GIB),) * 8),
        (("planned for NVIDIA H200 SXM", "NVIDIA H100 80GB HBM3", "plan for this one"),),
    ),
    "a model that nobody knows": (
        replace(HELD, needs=replace(NEEDS, device_name="a card")), NODE, (),
    ),
    "device memory": (
        HELD,
        replace(NODE, gpus=(Gpu("NVIDIA H200", 100 * GIB),) * 8),
        (("120.0 GiB of device memory", "100.0 GiB", "less memory"),),
    ),
    "one card of all": (
        HELD,
        replace(NODE, gpus=(*(CARD,) * 7, Gpu("NVIDIA H200", 3 * GIB))),
        (("120.0 GiB of device memory", "3.0 GiB"),),
    ),
    "pinned memory": (
        HELD,
        replace(NODE, host_free_bytes=999 * GIB),
        (("8 ranks take 1,000.0 GiB", "999.0 GiB are free"),),
    ),
    "memory of CPU ranks": (
        Demand(CPU, 8),
        replace(NO_GPU, driver="", host_free_bytes=7 * GIB),
        (("8 ranks take 8.0 GiB", "7.0 GiB are free"),),
    ),
    "shared memory": (
        HELD,
        replace(NODE, shared_free_bytes=64 * 2**20),
        (("73.5 MiB of /dev/shm for 8 ranks", "64.0 MiB", "--shm-size"),),
    ),
    "shared memory of one rank": (
        Demand(replace(NEEDS, ranks=1), 1), replace(NODE, shared_free_bytes=0), (),
    ),
    "disk": (
        HELD,
        replace(NODE, disk_free_bytes=599 * GIB),
        (("checkpoint takes 600.0 GiB", "599.0 GiB", "another --out"),),
    ),
    "old torch": (HELD, replace(NODE, torch="2.10.1"), (("2.10.1", "2.11 up to", "2.14"),)),
    "torch to come": (HELD, replace(NODE, torch="2.14.0a0+git1"), (("2.14.0a0", "not 2.14"),)),
    "all at once": (
        Demand(CPU, 8, GIB),
        replace(NO_GPU, torch="3.0", host_free_bytes=0, disk_free_bytes=0),
        (("torch is 3.0",), ("8 ranks take 9.0 GiB", "0.0 MiB"), ("a checkpoint", "0.0 MiB")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_what_a_machine_lacks(name: str) -> None:
    demand, machine, facts = TABLE[name]
    found = mismatches(demand, machine)
    assert len(found) == len(facts), found
    for text, said in zip(found, facts, strict=True):
        assert all(part in text for part in said), text


def test_versions_of_torch_are_those_that_the_package_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    first, end = (".".join(map(str, numbers)) for numbers in readiness.TORCH)
    assert f"torch>={first},<{end}" in project["dependencies"]


@pytest.mark.parametrize("name", RULES)
def test_a_checkpoint_is_counted_as_its_optimizer_stores_it(name: str) -> None:
    matrix = Param("w", (4, 4), (), "", hidden=True)
    layout = Layout("m", "float32", {}, (), 1, 1, 1, 1, 0, False, "float32", 1.0, (matrix,), ())
    rule = RULES[name](OptimizerOptions(name), layout)
    assert STORED[name] == 1 + rule.averages + len(rule.states(rule.kind(matrix)))


def test_this_machine_is_read(tmp_path: Path) -> None:
    found = read_machine(tmp_path / "not" / "there")
    assert found.torch == torch.__version__ and len(found.gpus) == torch.cuda.device_count()
    for size in (found.host_free_bytes, found.shared_free_bytes, found.disk_free_bytes):
        assert 0 < size < 2**60


# A tree of control groups as each version has it: the file, and what it holds.
GROUPS = {
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "4:cpu,memory:/job/step\n0::/\n"),
    "": ("memory.max", "memory.current", "0::/job/step\n"),
}


@pytest.mark.parametrize("version", GROUPS)
def test_the_limit_of_a_control_group_counts(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the job, above the step's; a file that is kept in memory gives way."""
    limit, used, groups = GROUPS[version]
    (tmp_path / "job" / "step").mkdir(parents=True)
    for name, text in ((limit, "1000\n"), (used, "900\n"), ("memory.stat", "inactive_file 50\n")):
        (tmp_path / "job" / name).write_text(text)
    (tmp_path / "job" / "step" / limit).write_text("max\n")
    monkeypatch.setattr(machines, "_GROUPS", {version: (tmp_path, limit, used)})
    read = machines._text
    own = Path("/proc/self/cgroup")
    monkeypatch.setattr(machines, "_text", lambda path: groups if path == own else read(path))
    assert min(machines._group_bytes()) == 150


# As the launcher and the ranks ask


@pytest.fixture(scope="module")
def gpu_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny preset for two GPUs."""
    folder = tmp_path_factory.mktemp("gpus")
    sizes = ["--seq", "32", "--global-batch", "4", "--cluster", "h200:2", "--no-search"]
    assert main(["plan", "tiny", *sizes, "-o", str(folder / "plan.txt")]) == 0
    assert main(["compile", str(folder / "plan.txt"), "-o", str(folder / "program")]) == 0
    return folder / "program"


def _on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is another."""
    monkeypatch.setattr(readiness, "read_machine", lambda _: machine)


def test_run_refuses_a_machine_before_a_rank_starts(
    gpu_program: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a rank was started"))
    _on(replace(NO_GPU, driver=""), monkeypatch)
    words = ("run", str(gpu_program), "--out", str(tmp_path / "run"))
    message = refused(capsys, *words)
    assert "planned for 2 NVIDIA H200 SXM on this machine, torch finds 0 GPUs" in message
    assert message.endswith("; --anyway runs it here all the same")
    assert not (tmp_path / "run").exists()


def test_a_rank_refuses_its_machine_and_goes_on_anyway(
    gpu_program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchrun starts it; the others of its machine leave that to the first."""
    _on(replace(NODE, gpus=(CARD,)), monkeypatch)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    needs = read_needs(gpu_program)
    with pytest.raises(readiness.MachineError, match="2 ranks are to start .* has 1 GPUs"):
        worker._checked_device(needs, RunOptions())
    assert worker._checked_device(needs, RunOptions(anyway=True)) == torch.device("cpu")
    said = capsys.readouterr().out
    assert said.startswith("going on by --anyway: 2 ranks are to start")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert worker._checked_device(needs, RunOptions()) == torch.device("cpu")


def test_a_rank_refuses_a_card_that_others_fill(
    gpu_program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _on(NODE, monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(worker, "free_gpu", lambda _: Gpu("NVIDIA H200", 5))
    needs = read_needs(gpu_program)
    with pytest.raises(readiness.MachineError, match="of device memory, NVIDIA H200 has 0.0 MiB"):
        worker._checked_device(needs, RunOptions())
    device = worker._checked_device(needs, RunOptions(anyway=True))
    assert device == torch.device("cuda", 0)
    assert needs is not None
    cpu = replace(needs, device_type="cpu")
    capsys.readouterr()
    assert worker._checked_device(cpu, RunOptions()) == torch.device("cpu")
    assert "GPUs left idle here: 2; plan for them, or --anyway" in capsys.readouterr().out
    assert worker._checked_device(cpu, RunOptions(anyway=True)) == torch.device("cuda", 0)


def test_an_older_program_says_nothing_of_machines(tmp_path: Path) -> None:
    assert read_needs(tmp_path) is None


def test_a_checkpoint_that_the_disk_cannot_hold_is_refused(
    gpu_program: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """951,424 float32 parameters with two moments each; only of a run that saves."""
    _on(replace(NODE, disk_free_bytes=2**20), monkeypatch)
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a rank was started"))
    words = ["run", str(gpu_program), "--out", str(tmp_path / "run")]
    message = refused(capsys, *words, "--save-every", "5")
    assert "a checkpoint takes 10.9 MiB on the disk of --out, 1.0 MiB are free" in message
    message = refused(capsys, *words, "--save-every", "5", "--optimizer", "sgd")
    assert "a checkpoint takes 7.3 MiB" in message
