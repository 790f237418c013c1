"""A rank among others: process group, signals that ask for a stop, the end."""

import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from ..engine import mesh
from ..host import host_name
from ..metrics.health import Health, reader
from ..metrics.printed import Printed
from ..probe.preflight import check as check_rates
from ..training.options import RunOptions
from ..training.program import load_layout
from ..training.trainer import Trainer
from .environment import local_rank, local_world, world
from .heartbeat import GROUPS, RENDEZVOUS, Beacon
from .machine import free_gpu
from .readiness import Needs, card_mismatches, check_machine, judge, read_needs
from .watchdog import start_limit_s

_AFTER_WATCH_S = 60.0
_LONGEST_S = 30 * 86400.0


def launch(folder: Path, options: RunOptions, beacon: Beacon) -> int:
    """Train the program in `folder` as one rank of those in the environment; the exit code."""
    stop = StopSignal()
    # Before the rendezvous, which would wait for ranks that nobody launches.
    mesh.check_world(load_layout(folder).mesh, world())
    timeout = _timeout(options.hang_after)
    say = Printed(sys.stdout if beacon.rank == 0 else None)
    device = _checked_device(read_needs(folder), options, _print if beacon.rank else say)
    start_distributed(device, beacon, timeout)
    return run(folder, options, device, stop, beacon, timeout, say)


def _timeout(hang_after_s: float) -> timedelta:
    """Of torch's own waits, which name nobody: longer than any that the watch allows."""
    return timedelta(seconds=min(start_limit_s(hang_after_s) + _AFTER_WATCH_S, _LONGEST_S))


def finish(code: int) -> None:
    """Leave together and at once: tearing gloo's groups down one by one races with its threads."""
    if dist.is_initialized():
        dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _print(text: str) -> None:
    print(text, flush=True)


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _silent(text: str) -> None:
    """Say nothing: the first rank of the machine said it."""


def _checked_device(
    needs: Needs | None, options: RunOptions, say: Callable[[str], None] = _print
) -> torch.device:
    """Return this rank's device, of the kind that the program is planned for.

    Its machine is checked by the first rank on it, which the others wait for at the rendezvous, and
    its own GPU by each. Raises MachineError.
    """
    if needs is None:
        return own_device(gpus=True)
    if local_rank() == 0:
        check_machine(needs, options, local_world(), say)
    device = own_device(gpus=needs.device_type != "cpu" or options.anyway)
    if device.type == "cuda":
        judge(card_mismatches(needs, free_gpu(device)), options.anyway, _silent)
    elif local_rank() == 0 and torch.cuda.is_available():
        idle = torch.cuda.device_count()
        say(f"planned for CPU ranks: GPUs left idle here: {idle}; plan for them, or --anyway")
    return device


def own_device(*, gpus: bool) -> torch.device:
    """Return the GPU of this rank, or the CPU where there is none, or it is to use none."""
    cuda = gpus and torch.cuda.is_available()
    local = local_rank()
    if cuda and local >= torch.cuda.device_count():
        raise ValueError(
            f"local rank {local} has no GPU: this machine has {torch.cuda.device_count()}; "
            "start fewer ranks on it"
        )
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    return device


def start_distributed(device: torch.device, beacon: Beacon, timeout: timedelta) -> None:
    """Start the process group of torchrun's environment, none for one process.

    timeout: of the rendezvous and of the group's collectives.
    """
    cuda = device.type == "cuda"
    if world() > 1:
        beacon.mark(RENDEZVOUS)
        backend = "nccl" if cuda else "gloo"
        dist.init_process_group(backend, timeout=timeout, device_id=device if cuda else None)


class StopSignal:
    """Handler of SIGTERM, SIGUSR1 and Ctrl-C. wanted: one of them asked this rank to stop."""

    def __init__(self) -> None:
        self.wanted = False
        numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
        for number in numbers:
            signal.signal(number, self._on_signal)
        # Our launcher starts ranks with these blocked; what came since comes now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

    def _on_signal(self, *_: object) -> None:
        self.wanted = True


def run(
    folder: Path,
    options: RunOptions,
    device: torch.device,
    stop: StopSignal,
    beacon: Beacon,
    timeout: timedelta,
    say: Printed,
) -> int:
    """Build the executor and train; rank 0 writes the log and prints. Returns the exit code."""
    layout = load_layout(folder)
    beacon.mark(GROUPS)
    mesh.start(layout.mesh, device, timeout)
    logs = beacon.rank == 0
    limit_s = start_limit_s(options.hang_after)
    if options.preflight:
        beacon.mark("PREFLIGHT")
        tell = say if logs else _silent
        check_rates(folder, layout.dtype, options.preflight, Path(options.out), tell)
        if options.preflight == "only":
            return 0
    read = reader() if device.type == "cuda" and local_rank() == 0 else None
    if read is not None:
        Health(Path(options.out), host_name(), _to_stderr, read)
    trainer = Trainer(folder, layout, options, beacon, stop, say, logs=logs, write_limit_s=limit_s)
    return trainer.train()
