"""Readings of collectives between the devices at hand, one process a device."""

import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from ..engine.collectives import RENAMED

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
SIZES = tuple(2**k for k in (16, 20, 23, 26, 29))  # bytes of the largest buffer on a rank
ON_CPU = tuple(2**k for k in (16, 20, 22, 24))
_READINGS = 9


@dataclass(frozen=True)
class LinkRead:
    """Times of one collective over `group` ranks: (bytes, median us, slow us) by growing size."""

    kind: str
    group: int
    points: tuple[tuple[int, float, float], ...]


def link_reads(kind: str, ranks: int, readings: int = _READINGS) -> list[LinkRead]:
    """Time every collective over 2, 4, ... of the ranks. kind: cuda or cpu.

    A time is that of the slowest rank; bytes count the largest buffer on a rank, as in a cluster
    file.
    """
    if ranks < 2:
        return []
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (kind, ranks, readings, folder), nprocs=ranks)
        found = json.loads((Path(folder) / "found.json").read_text())
    return [LinkRead(k, group, tuple(map(tuple, points))) for k, group, points in found]


def groups_of(ranks: int) -> list[int]:
    """Return the sizes of groups that are read: powers of two, and all ranks."""
    found = [2**k for k in range(1, ranks.bit_length()) if 2**k <= ranks]
    return found if found[-1] == ranks else [*found, ranks]


def _rank(rank: int, kind: str, ranks: int, readings: int, folder: str) -> None:
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=RENAMED)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = f"file://{folder}/store"
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        init_method=store,
        rank=rank,
        world_size=ranks,
        device_id=device if kind == "cuda" else None,
    )
    found = []
    for group_size in groups_of(ranks):
        group = dist.new_group(list(range(group_size)))
        if rank < group_size:
            found += [_read(k, group, rank, device, readings) for k in KINDS]
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _read(
    kind: str, group: dist.ProcessGroup, rank: int, device: torch.device, readings: int
) -> tuple[str, int, list[tuple[int, float, float]]]:
    points = []
    for size in SIZES if device.type == "cuda" else ON_CPU:
        work = _work(kind, size, group, rank, device)
        work()
        taken = sorted(_slowest(work, group, device) for _ in range(readings))
        points.append((size, round(statistics.median(taken), 1), round(taken[-2], 1)))
    return kind, group.size(), points


def _slowest(work: Callable[[], object], group: dist.ProcessGroup, device: torch.device) -> float:
    """Return the us of a collective on its slowest rank."""
    dist.barrier(group)
    _wait(device)
    began = time.perf_counter()
    work()
    _wait(device)
    taken = torch.tensor(1e6 * (time.perf_counter() - began), device=device)
    dist.all_reduce(taken, dist.ReduceOp.MAX, group=group)
    return taken.item()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _work(
    kind: str, size: int, group: dist.ProcessGroup, rank: int, device: torch.device
) -> Callable[[], object]:
    """Return what programs do for a collective, its largest buffer on a rank of `size` bytes."""
    n = group.size()
    x = torch.ones(size // 4 // n * n, device=device)
    if kind == "all_reduce":
        return partial(dist.all_reduce, x, group=group)
    if kind == "all_gather":
        part = x[: x.numel() // n].clone()
        return partial(dist.all_gather_into_tensor, x, part, group=group)
    if kind == "reduce_scatter":
        part = x[: x.numel() // n].clone()
        return partial(dist.reduce_scatter_tensor, part, x, group=group)
    if kind == "all_to_all":
        return partial(dist.all_to_all_single, torch.empty_like(x), x, group=group)
    return partial(_swap, x, group, rank)


def _swap(x: Tensor, group: dist.ProcessGroup, rank: int) -> None:
    """Send to the next rank what the one before sends."""
    n = group.size()
    received = torch.empty_like(x)
    pair = [
        dist.P2POp(dist.isend, x, (rank + 1) % n, group=group),
        dist.P2POp(dist.irecv, received, (rank - 1) % n, group=group),
    ]
    for one in dist.batch_isend_irecv(pair):
        one.wait()
