"""What this machine has: its GPUs, driver and torch, and what is free of memory and disk."""

import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

_DRIVER = Path("/proc/driver/nvidia/version")
_MEMORY = Path("/proc/meminfo")
_SHARED = Path("/dev/shm")
# Where control groups are mounted, and their files of the limit and of what is used, by the
# controller that a process's list names: version 1, and version 2, which has one tree for all.
_GROUPS = {
    "memory": (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
    "": (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
}


@dataclass(frozen=True)
class Gpu:
    """name: as the driver gives it. memory_bytes: of the whole card, or what is free of it."""

    name: str
    memory_bytes: int


@dataclass(frozen=True)
class Machine:
    """The machine as it was found; bytes that are not known are infinite.

    cuda, driver: the CUDA version that torch is built for, and that of the NVIDIA driver, ""
    without one.
    """

    gpus: tuple[Gpu, ...]
    torch: str
    cuda: str
    driver: str
    host_free_bytes: float
    shared_free_bytes: float
    disk_free_bytes: float


def read_machine(out: Path) -> Machine:
    """Read this machine. out: a folder, there or not, on the disk that counts.

    Takes no memory of a GPU.
    """
    return Machine(
        gpus=read_gpus(),
        torch=torch.__version__,
        cuda=torch.version.cuda or "",
        driver=_driver(),
        host_free_bytes=min([_available_bytes(), *_group_bytes()]),
        shared_free_bytes=shutil.disk_usage(_SHARED).free if _SHARED.is_dir() else math.inf,
        disk_free_bytes=_disk_bytes(out),
    )


def read_gpus() -> tuple[Gpu, ...]:
    """Return the cards that torch sees, with their whole memory."""
    return tuple(map(_card, range(torch.cuda.device_count())))


def free_gpu(device: torch.device) -> Gpu:
    """Return a card with what is free of its memory, of which this takes a little."""
    free, _ = torch.cuda.mem_get_info(device)
    return Gpu(torch.cuda.get_device_name(device), free)


def _card(index: int) -> Gpu:
    found = torch.cuda.get_device_properties(index)
    return Gpu(found.name, found.total_memory)


def _driver() -> str:
    match = re.search(r"Module\b.*?\s(\d+(?:\.\d+)+)\s", _text(_DRIVER))
    return match[1] if match else ""


def _available_bytes() -> float:
    return 1024 * _number(r"^MemAvailable:\s+(\d+) kB", _MEMORY, math.inf)


def _group_bytes() -> Iterator[float]:
    """What is left of each limit that the control groups of this process set."""
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        for name in _GROUPS.keys() & controllers.split(","):
            root, limit, used = _GROUPS[name]
            group = root / path.lstrip("/")
            for folder in (group, *group.parents):
                if folder.is_relative_to(root):
                    yield _left(folder, limit, used)


def _left(group: Path, limit: str, used: str) -> float:
    """Bytes that a control group may still take; what the system keeps of files gives way."""
    most = _number(r"^(\d+)$", group / limit, math.inf)
    taken = _number(r"^(\d+)$", group / used, 0)
    return most - taken + _number(r"^inactive_file (\d+)", group / "memory.stat", 0)


def _number(pattern: str, path: Path, otherwise: float) -> float:
    """Return the number that a line of a file of the system gives."""
    match = re.search(pattern, _text(path), re.MULTILINE)
    return int(match[1]) if match else otherwise


def _disk_bytes(path: Path) -> float:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def _text(path: Path) -> str:
    """Return a file of the system, "" where it has none."""
    try:
        return path.read_text()
    except OSError:
        return ""
