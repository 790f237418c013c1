"""Readings of collectives between the devices at hand, one process a device.

Cards are given several at once behind matmuls, as a program that replays a recorded micro-batch
has them: the host's time to issue one, 60 us on a virtual machine, is no part of a reading.
"""

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
from .timing import hold, unseen_bytes

RINGS = ("all_reduce", "all_gather", "reduce_scatter")
KINDS = (*RINGS, "all_to_all", "send_recv")
SIZES = tuple(2**k for k in (16, 20, 23, 26, 29))  # bytes of the largest buffer on a rank
ON_CPU = tuple(2**k for k in (16, 20, 22, 24))
_READINGS = 9
# Bytes of an all_gather and how many run beside compute, 26 ms alone on two H200s; and how often a
# matmul and a pass over memory, 51 ms: gathers take longer beside them, and are to end first.
_GATHERED, _GATHERS, _COMPUTED = 2**29, 24, 56
_ROWS, _WIDTH, _WIDER = 16384, 2048, 8192  # of the matmul
BESIDE = (
    f"{_COMPUTED} matmuls of {_ROWS} x {_WIDTH} x {_WIDER} and passes over {_GATHERED >> 20} MiB "
    f"beside {_GATHERS} all_gathers of as much"
)
_AT_ONCE = 16  # collectives that a card is given for one reading
_LARGE = 2**25  # bytes from which on a reading is of a single collective


@dataclass(frozen=True)
class LinkRead:
    """Times of one collective over `group` ranks: (bytes, median us, slow us) by growing size."""

    kind: str
    group: int
    points: tuple[tuple[int, float, float], ...]


@dataclass(frozen=True)
class Links:
    """What was read between devices.

    communicator_bytes: of a card, that one communicator of all ranks holds once it has run RINGS; 0
    on a CPU. overlap: (price, least, most) of compute beside all_gathers, as a share
    of the time of these that matmuls take longer by; None on a CPU.
    """

    reads: tuple[LinkRead, ...] = ()
    communicator_bytes: int = 0
    overlap: tuple[float, float, float] | None = None


def links_read(kind: str, ranks: int, readings: int = _READINGS) -> Links:
    """Time every collective over 2, 4, ... of the ranks. kind: cuda or cpu.

    A time is that of the slowest rank; bytes count the largest buffer on a rank, as in a cluster
    file.
    """
    if ranks < 2:
        return Links()
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (kind, ranks, readings, folder), nprocs=ranks)
        found = json.loads((Path(folder) / "found.json").read_text())
    reads = (LinkRead(k, group, tuple(map(tuple, points))) for k, group, points in found["reads"])
    overlap = found["overlap"]
    return Links(tuple(reads), found["communicator_bytes"], overlap and tuple(overlap))


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
    reads, held, overlap = [], 0, None
    dist.barrier()
    if kind == "cuda":
        hold()  # so that kernels of matmuls are loaded before memory is read
    for group_size in groups_of(ranks):
        before = unseen_bytes(device)
        group = dist.new_group(list(range(group_size)))
        if rank < group_size:
            reads += [_read(k, group, rank, device, readings) for k in RINGS]
            held = unseen_bytes(device) - before
            reads += [_read(k, group, rank, device, readings) for k in KINDS[len(RINGS) :]]
    if kind == "cuda":
        prices = sorted(_overlap_price(group, device) for _ in range(readings))
        overlap = statistics.median(prices), prices[1], prices[-2]
    if rank == 0:
        found = {"reads": reads, "communicator_bytes": held, "overlap": overlap}
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
        once = partial(_queued_us, work, size) if device.type == "cuda" else partial(_us, work)
        taken = sorted(_slowest(once, group, device) for _ in range(readings))
        points.append((size, round(statistics.median(taken), 1), round(taken[-2], 1)))
    return kind, group.size(), points


def _slowest(once: Callable[[], float], group: dist.ProcessGroup, device: torch.device) -> float:
    """Return the us of a collective on its slowest rank."""
    dist.barrier(group)
    _wait(device)
    taken = torch.tensor(once(), device=device)
    dist.all_reduce(taken, dist.ReduceOp.MAX, group=group)
    return taken.item()


def _us(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return 1e6 * (time.perf_counter() - began)


def _queued_us(work: Callable[[], object], size: int) -> float:
    """Return the us of each of several collectives that a card is given at once.

    One before them lets the ranks begin together.
    """
    count = 1 if size >= _LARGE else _AT_ONCE
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    hold()
    work()
    first.record()
    for _ in range(count):
        work()
    last.record()
    torch.cuda.synchronize()
    return 1e3 * first.elapsed_time(last) / count


def _overlap_price(group: dist.ProcessGroup, device: torch.device) -> float:
    """Return by what share of all_gathers' own time compute beside them takes longer.

    Both are issued behind matmuls, so that a card has the clock of a step. Compute is of matmuls
    and passes over memory in turn, as a step's is, and lasts longer than the gathers beside it. On
    two H200s readings are 0.06 to 0.21, their median 0.15, where steps say 0.2; beside matmuls of
    8192^3 that end before the gathers they are 0.04 to 0.09.
    """
    sizes = (_ROWS, _WIDTH), (_WIDTH, _WIDER)
    a, b = (torch.empty(*of, device=device, dtype=torch.bfloat16).normal_() for of in sizes)
    passed = torch.zeros(_GATHERED // 2, device=device, dtype=torch.bfloat16)
    written = torch.empty_like(passed)
    whole = torch.empty(_GATHERED // 2, device=device, dtype=torch.bfloat16)
    part = whole[: whole.numel() // group.size()].clone()

    def gathers() -> list[dist.Work]:
        gather = partial(dist.all_gather_into_tensor, whole, part, group=group, async_op=True)
        return [gather() for _ in range(_GATHERS)]

    def compute() -> None:
        for _ in range(_COMPUTED):
            torch.mm(a, b)
            torch.add(passed, 1.0, out=written)

    def timed(beside: bool, computes: bool) -> float:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.barrier(group)
        hold()
        first.record()
        works = gathers() if beside else []
        if computes:
            compute()
            last.record()
        for work in works:
            work.wait()
        if not computes:
            last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last)

    alone, gathered, both = timed(False, True), timed(True, False), timed(True, True)
    return max(0.0, both - alone) / gathered


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
