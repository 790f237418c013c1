"""Whether a machine has what a program needs: asked before its ranks start, or make weights."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from ..metrics.devices import PEAKS
from ..optimizers.options import STORED
from ..training.options import RunOptions
from .machine import Gpu, Machine, read_machine

# Versions of torch that this runtime is written for: from the first, up to but not the second.
TORCH = ((2, 11), (2, 14))
# The first driver that runs programs of a CUDA version, by its first number.
# https://docs.nvidia.com/deploy/cuda-compatibility/
_DRIVERS = {"11": 450, "12": 525, "13": 580}
# What NCCL takes of shared memory for a rank's connections inside a node.
_NCCL_BYTES = 9637888


class MachineError(ValueError):
    """A machine that lacks what a program needs."""


@dataclass(frozen=True)
class Needs:
    """Needs of a program, as its needs.json says them; sizes are in bytes.

    device_type: as torch names it. ranks: on all nodes. rank_bytes: the predicted peak of a rank.
    offloaded_bytes: what one keeps in the host's memory at most. trained_bytes: of all trained
    parameters as the optimizer updates them. optimizer: the one that was planned for.
    """

    device_type: str
    device_name: str
    devices_per_node: int
    ranks: int
    rank_bytes: int
    offloaded_bytes: int
    trained_bytes: int
    frozen_bytes: int
    optimizer: str


@dataclass(frozen=True)
class Demand:
    """Demand of a run on one machine.

    ranks: that start on it. checkpoint_bytes: what those write of a checkpoint, 0 where the run
    saves none.
    """

    needs: Needs
    ranks: int
    checkpoint_bytes: int = 0

    @property
    def host_bytes(self) -> int:
        """Memory of the host; a checkpoint is copied there before it is written."""
        cpu = self.needs.device_type == "cpu"
        each = self.needs.rank_bytes if cpu else self.needs.offloaded_bytes
        return self.ranks * each + self.checkpoint_bytes


def read_needs(folder: Path) -> Needs | None:
    """Return what the program in `folder` needs, None of an older one, which does not say it."""
    path = folder / "needs.json"
    found = json.loads(path.read_text()) if path.is_file() else {}
    return Needs(**{item.name: found[item.name] for item in fields(Needs)}) if found else None


def check_machine(
    needs: Needs, options: RunOptions, ranks: int, say: Callable[[str], None]
) -> None:
    """Refuse a run whose `ranks` this machine cannot hold, by MachineError; say it by --anyway."""
    share = ranks / needs.ranks if options.saves else 0
    stored = STORED[options.optimizer or needs.optimizer] * needs.trained_bytes
    demand = Demand(needs, ranks, round(share * (stored + needs.frozen_bytes)))
    judge(mismatches(demand, read_machine(Path(options.out))), options.anyway, say)


def judge(found: list[str], anyway: bool, say: Callable[[str], None]) -> None:
    """Raise MachineError with all that was found, or say it where the run goes on `anyway`."""
    if found and not anyway:
        raise MachineError(f"{'; '.join(found)}; --anyway runs it here all the same")
    for text in found:
        say(f"going on by --anyway: {text}")


def mismatches(demand: Demand, machine: Machine) -> list[str]:
    """Return what the machine lacks, each with both numbers and a way out."""
    cuda = demand.needs.device_type == "cuda"
    return [
        *_torch(machine),
        *(_cards(demand, machine) if cuda else ()),
        *_host_memory(demand, machine),
        *(_shared_memory(demand, machine) if cuda and machine.gpus else ()),
        *_disk(demand, machine),
    ]


def card_mismatches(needs: Needs, card: Gpu) -> list[str]:
    """Return what one card lacks: its model, and memory for the predicted peak of a rank."""
    found = []
    model = next((key for key in PEAKS if key in needs.device_name), "")
    if model not in card.name:
        found.append(
            f"the program is planned for {needs.device_name}, the GPU here is {card.name}: its "
            "predicted time and memory are of another card; plan for this one"
        )
    if card.memory_bytes < needs.rank_bytes:
        found.append(
            f"a rank takes {_size(needs.rank_bytes)} of device memory, {card.name} has "
            f"{_size(card.memory_bytes)}; end what else runs there, or plan for less memory"
        )
    return found


def _torch(machine: Machine) -> Iterator[str]:
    numbers = tuple(map(int, re.findall(r"\d+", machine.torch)[:2]))
    first, end = TORCH
    if not first <= numbers < end:
        yield (
            f"torch is {machine.torch}, the program is for {_version(first)} up to but not "
            f"{_version(end)}; install one of these"
        )


def _cards(demand: Demand, machine: Machine) -> Iterator[str]:
    """What is wrong with the GPUs of a machine; the first kind of fault says it all."""
    needs, count = demand.needs, len(machine.gpus)
    if not count:
        yield (
            f"the program is planned for {demand.ranks} {needs.device_name} on this machine, torch "
            f"finds 0 GPUs: {_why_none(needs, machine)}"
        )
    elif count < demand.ranks:
        nodes = -(-needs.ranks // needs.devices_per_node)
        way = "start fewer on it, or plan for this machine"
        if nodes > 1:
            way = f"start launch.sh on each of {nodes} nodes, or submit job.sbatch"
        yield f"{demand.ranks} ranks are to start on this machine, it has {count} GPUs; {way}"
    else:
        faults = (card_mismatches(needs, card) for card in machine.gpus[: demand.ranks])
        yield from next(filter(None, faults), [])


def _why_none(needs: Needs, machine: Machine) -> str:
    """Why torch finds no GPU, and what to do."""
    if "NVIDIA" not in needs.device_name:
        return f"see whether their driver is loaded, and torch {machine.torch} built for them"
    if not machine.driver:
        return "no NVIDIA driver is loaded; run it where the GPUs are, or plan with --cluster cpu:N"
    if not machine.cuda:
        return f"torch {machine.torch} is built without CUDA; install a build with it"
    least = _DRIVERS.get(machine.cuda.partition(".")[0], 0)
    if int(machine.driver.partition(".")[0]) < least:
        return (
            f"the NVIDIA driver is {machine.driver}, torch {machine.torch} takes {least} or later; "
            "update the driver, or install a torch for an older CUDA"
        )
    return (
        f"NVIDIA driver {machine.driver} and torch {machine.torch} are there; see whether "
        "CUDA_VISIBLE_DEVICES or the job hides the GPUs"
    )


def _host_memory(demand: Demand, machine: Machine) -> Iterator[str]:
    if machine.host_free_bytes < demand.host_bytes:
        yield (
            f"{demand.ranks} ranks take {_size(demand.host_bytes)} of this machine's memory, "
            f"{_size(machine.host_free_bytes)} are free; free memory, or plan for more machines"
        )


def _shared_memory(demand: Demand, machine: Machine) -> Iterator[str]:
    wanted = _NCCL_BYTES * demand.ranks if demand.ranks > 1 else 0
    if machine.shared_free_bytes < wanted:
        yield (
            f"NCCL takes {_size(wanted)} of /dev/shm for {demand.ranks} ranks, "
            f"{_size(machine.shared_free_bytes)} are free; give the container more (--shm-size=1g)"
        )


def _disk(demand: Demand, machine: Machine) -> Iterator[str]:
    if machine.disk_free_bytes < demand.checkpoint_bytes:
        yield (
            f"a checkpoint takes {_size(demand.checkpoint_bytes)} on the disk of --out, "
            f"{_size(machine.disk_free_bytes)} are free; free space, give "
            "another --out, or --save-minutes 0 for no checkpoints"
        )


def _version(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _size(count: float) -> str:
    """Bytes in the unit in which they are at least 1, or in MiB."""
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"
