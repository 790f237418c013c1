"""Before the first step: what the devices and links of a run do now, against what was planned.

All ranks take part; a few seconds. A node is slow where a device of it falls short of what the plan
assumes by more than SLOW, or of the median of all devices, where the plan says nothing.
"""

import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from ..checkpoint.manifest import rank, texts_of_all, world
from ..engine import mesh
from ..host import host_name
from ..metrics.health import GpuHealth, card_of, complaints
from ..training.options import UNFIT
from .rates import BYTES

# Cards of one kind, and their clocks, differ by up to a fifth (docs/cost-model.md).
SLOW = 0.25
RATES = "rates.json"
_SIDE = {"cuda": 8192, "cpu": 512}
_COPIED = {"cuda": 2**30, "cpu": 2**22}
_BUDGET_S, _TIMES = 1.0, 5


class PreflightError(ValueError):
    """A machine that is slower than planned. code: the exit code of ranks that it stops."""

    code = UNFIT


@dataclass(frozen=True)
class RankRead:
    """A rank's readings. matmul: flop/s of a square product in the plan's dtype. copy: bytes/s read
    and written by a copy on the device. versions: of Python, torch and what torch is built for.
    clock_mhz, most_mhz: of the card right after the products, and at most; 0 where it cannot be
    read. card: what is wrong with it, a line each."""

    rank: int
    host: str
    device: str
    matmul: float
    copy: float
    versions: str = ""
    clock_mhz: int = 0
    most_mhz: int = 0
    card: tuple[str, ...] = ()


@dataclass(frozen=True)
class Preflight:
    """Readings of a run. all_reduce_us, all_gather_us: over all ranks, of the slowest, None of one
    rank; `bytes` is the largest buffer on a rank."""

    ranks: tuple[RankRead, ...]
    dtype: str
    bytes: int
    all_reduce_us: float | None
    all_gather_us: float | None
    seconds: float


def assumed(folder: Path) -> dict[str, float]:
    """Return what the plan of a program assumes, by name; nothing of a program that does not say
    it."""
    path = folder / RATES
    return json.loads(path.read_text()) if path.is_file() else {}


def read(dtype: str) -> Preflight:
    """Take the readings on all ranks, and return them on all. dtype: as torch names it."""
    began, device = time.perf_counter(), mesh.device()
    own = _own(device, getattr(torch, dtype))
    ranks = tuple(map(_read_back, texts_of_all(json.dumps(asdict(own)))))
    size = BYTES[device.type]
    reduce_us = _collective_us("all_reduce", size, device)
    gather_us = _collective_us("all_gather", size, device)
    return Preflight(ranks, dtype, size, reduce_us, gather_us, time.perf_counter() - began)


def _read_back(text: str) -> RankRead:
    said = json.loads(text)
    return RankRead(**{**said, "card": tuple(said["card"])})


def _own(device: torch.device, dtype: torch.dtype) -> RankRead:
    side = _SIDE[device.type]
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    flops = 2.0 * side**3 / _seconds(partial(torch.matmul, a, b))
    card = _card(device)
    c, d = (torch.ones(_COPIED[device.type], dtype=torch.int8, device=device) for _ in range(2))
    copied = 2.0 * c.numel() / _seconds(partial(d.copy_, c))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU rank"
    return RankRead(
        rank(),
        host_name(),
        name,
        flops,
        copied,
        _versions(),
        card.clock_mhz if card else 0,
        card.most_mhz if card else 0,
        tuple(complaints(None, card)) if card else (),
    )


def _card(device: torch.device) -> GpuHealth | None:
    """Return the reading of this rank's card; None of a CPU rank."""
    if device.type != "cuda":
        return None
    return card_of(f"GPU-{torch.cuda.get_device_properties(device).uuid}")


def _versions() -> str:
    """Return the versions that ranks of one run share."""
    cuda = f", CUDA {torch.version.cuda}" if torch.version.cuda else ""
    return f"Python {platform.python_version()}, torch {torch.__version__}{cuda}"


def _seconds(work: Callable[[], object]) -> float:
    """Return the median seconds of a call, within a budget."""
    work()
    mesh.synchronize()
    found, until = list[float](), time.perf_counter() + _BUDGET_S / 2
    while len(found) < _TIMES or (time.perf_counter() < until and len(found) < 100):
        found.append(_seconds_once(work))
    return statistics.median(found)


def _seconds_once(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    mesh.synchronize()
    return time.perf_counter() - began


def _collective_us(kind: str, size: int, device: torch.device) -> float | None:
    """Return the median us of a collective over all ranks, each time of the slowest."""
    if world() == 1:
        return None
    x = torch.ones(size // 4 // world() * world(), device=device)
    part = x[: x.numel() // world()].clone()
    work: Callable[[], object] = partial(dist.all_reduce, x)
    if kind == "all_gather":
        work = partial(dist.all_gather_into_tensor, x, part)
    taken = torch.zeros(_TIMES, device=device, dtype=torch.float64)
    work()
    for n in range(_TIMES):
        dist.barrier()
        taken[n] = 1e6 * _seconds_once(work)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return taken.median().item()


def verdict(found: Preflight, plan: dict[str, float]) -> list[str]:
    """Return what is slow, wrong with a card or another version, a line each that begins with the
    host; both numbers in it."""
    said = [f"{one.host}: rank {one.rank}: {text}" for one in found.ranks for text in one.card]
    usual_versions = statistics.mode(one.versions for one in found.ranks)
    said += [
        f"{one.host}: rank {one.rank} runs {one.versions}, most ranks run {usual_versions}"
        for one in found.ranks
        if one.versions != usual_versions
    ]
    for name, unit in (("matmul", "flop/s"), ("copy", "B/s")):
        usual = statistics.median(getattr(one, name) for one in found.ranks)
        wanted, of = plan.get(f"{name}_per_s"), "the plan assumes"
        if wanted is None:
            wanted, of = usual, "half of all ranks do"
        for one in found.ranks:
            value = getattr(one, name)
            if value < (1 - SLOW) * wanted:
                said.append(
                    f"{one.host}: rank {one.rank} ({one.device}) does {_rate(value, unit)} of "
                    f"{name}, {of} {_rate(wanted, unit)}"
                )
    for name in ("all_reduce_us", "all_gather_us"):
        value, wanted = getattr(found, name), plan.get(name)
        if value is not None and wanted is not None and value > wanted / (1 - SLOW):
            said.append(
                f"all hosts: {name[:-3]} of {found.bytes / 2**20:.0f} MiB over all ranks takes "
                f"{value:,.0f} us, the plan assumes {wanted:,.0f}"
            )
    return said


def _rate(value: float, unit: str) -> str:
    """Return a rate in the unit in which it is at least 1."""
    return f"{value / 1e12:.1f} T{unit}" if value >= 1e12 else f"{value / 1e9:.1f} G{unit}"


def slow_hosts(said: Sequence[str]) -> list[str]:
    """Return the hosts that lines of a verdict name, without `all hosts`."""
    return sorted({line.partition(":")[0] for line in said} - {"all hosts"})


def table(found: Preflight) -> list[str]:
    """Return the readings in words, a line a host."""
    lines = [_host_line(host, ranks) for host, ranks in _by_host(found).items()]
    for name in ("all_reduce_us", "all_gather_us"):
        value = getattr(found, name)
        if value is not None:
            lines.append(f"  {name[:-3]} of {found.bytes / 2**20:.0f} MiB: {value:,.0f} us")
    return [f"preflight of {len(found.ranks)} ranks in {found.seconds:.1f} s", *lines]


def _by_host(found: Preflight) -> dict[str, list[RankRead]]:
    hosts: dict[str, list[RankRead]] = {}
    for one in found.ranks:
        hosts.setdefault(one.host, []).append(one)
    return hosts


def _host_line(host: str, ranks: list[RankRead]) -> str:
    device = f"{len(ranks)} x {ranks[0].device}"
    matmul = _rate(min(one.matmul for one in ranks), "flop/s")
    copy = _rate(min(one.copy for one in ranks), "B/s")
    return f"  {host:20s} {device}  matmul {matmul}  copy {copy}{_clock(ranks)}"


def _clock(ranks: list[RankRead]) -> str:
    """Return the clock of the slowest card, "" of CPU ranks."""
    slowest = min(ranks, key=lambda one: one.clock_mhz)
    return f"  clock {slowest.clock_mhz} of {slowest.most_mhz} MHz" if ranks[0].most_mhz else ""


def check(
    folder: Path, dtype: str, policy: str, out: Path, say: Callable[[str], None]
) -> list[str]:
    """Take the readings, keep them in OUT/preflight.json, say and return what is not as planned.

    policy: "say" goes on whatever is found. Raises PreflightError, on all ranks, by "stop" where
    anything is slow.
    """
    found, plan = read(dtype), assumed(folder)
    said = verdict(found, plan)
    for line in table(found):
        say(line)
    if rank() == 0:
        out.mkdir(parents=True, exist_ok=True)
        kept = {**asdict(found), "assumed": plan, "slow": said, "slow_hosts": slow_hosts(said)}
        (out / "preflight.json").write_text(json.dumps(kept, indent=1) + "\n")
    for line in said:
        say(f"not as planned: {line}")
    if said and policy == "stop":
        raise PreflightError(
            f"{said[0]}" + (f" ({len(said) - 1} more)" if said[1:] else "") + "; leave that host "
            "out, plan for what is there, or --preflight say"
        )
    return said
