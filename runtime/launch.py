"""The entry of an emitted program: arguments, process group, exit codes."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from . import mesh
from .health import GROUPS, LAUNCH, RENDEZVOUS, Beacon, Watch, start_limit_s
from .options import RunOptions, add_arguments, run_options
from .program import load_layout
from .session import Session

# Rank 0 speaks for all when all fail alike: others wait so long before they speak for themselves.
_AFTER_RANK_0_S = 1.0
_AFTER_WATCH_S = 60.0
_LONGEST_S = 30 * 86400.0


def main(folder: Path) -> None:
    """Train the program in `folder` with the command line's options; exit code 2 on bad input."""
    parser = argparse.ArgumentParser(description=f"Run the program in {folder.name}")
    add_arguments(parser)
    given = parser.parse_args()
    # Streams share this many queues of the device, and one that waits holds up those in its queue.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    stop = StopSignal()
    try:
        options = run_options(vars(given))
        # Before the rendezvous, which would wait for ranks that nobody launches.
        mesh.check_world(load_layout(folder).mesh, _world())
        beacon = _watched(options)
        timeout = _timeout(options.hang_after)
        device = start_distributed(beacon, timeout)
        code = run(folder, options, device, stop, beacon, timeout)
    except (ValueError, OSError) as error:
        _refuse(error)
    finish(code)


def _world() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _watched(options: RunOptions) -> Beacon:
    """This rank's beacon, marked, and a watch over it: from here on no rank hangs unseen."""
    beats, rank = Path(options.out) / "beats", int(os.environ.get("RANK", "0"))
    beacon = Beacon(beats, rank)
    beacon.mark(LAUNCH)
    Watch(beats, rank, _world(), beacon, options.hang_after)
    return beacon


def _timeout(hang_after_s: float) -> timedelta:
    """Of torch's own waits, which name nobody: longer than any that the watch allows."""
    return timedelta(seconds=min(start_limit_s(hang_after_s) + _AFTER_WATCH_S, _LONGEST_S))


def _refuse(error: ValueError | OSError) -> None:
    """One line on stderr, exit code 2."""
    rank = int(os.environ.get("RANK", "0"))
    if rank:
        time.sleep(_AFTER_RANK_0_S)
    where = f"rank {rank}: " if rank else ""
    print(f"error: {where}{error}", file=sys.stderr, flush=True)
    os._exit(2)


def finish(code: int) -> None:
    """Leave together and at once: tearing gloo's groups down one by one races with its threads."""
    if dist.is_initialized():
        dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def start_distributed(beacon: Beacon, timeout: timedelta) -> torch.device:
    """Process group from torchrun's environment (none for one process), and this rank's device.

    timeout: of the rendezvous and of the group's collectives.
    """
    cuda = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if cuda and local >= torch.cuda.device_count():
        raise ValueError(
            f"local rank {local} has no GPU: this machine has {torch.cuda.device_count()}; "
            "start fewer ranks on it"
        )
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if _world() > 1:
        beacon.mark(RENDEZVOUS)
        backend = "nccl" if cuda else "gloo"
        dist.init_process_group(backend, timeout=timeout, device_id=device if cuda else None)
    return device


class StopSignal:
    """Whether SIGTERM, SIGUSR1 or Ctrl-C asked this rank to stop; from its making on."""

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
) -> int:
    """Build the executor and train; rank 0 writes the log and prints. Returns the exit code."""
    layout = load_layout(folder)
    beacon.mark(GROUPS)
    mesh.start(layout.mesh, device, timeout)
    logs = beacon.rank == 0
    say: Callable[[str], None] = print_line if logs else _silent
    return Session(folder, layout, options, device, beacon, stop, say, logs=logs).train()


def print_line(text: str) -> None:
    print(text, flush=True)


def _silent(text: str) -> None:
    return None
