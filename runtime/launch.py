"""The entry of an emitted program: arguments, process group, exit codes."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from . import mesh
from .health import Beacon, Watch
from .options import RunOptions, add_arguments, run_options
from .program import load_layout
from .session import Session

# Rank 0 speaks for all when all fail alike: others wait so long before they speak for themselves.
_AFTER_RANK_0_S = 1.0


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
        mesh.check_world(load_layout(folder).mesh, int(os.environ.get("WORLD_SIZE", "1")))
        device = start_distributed()
        code = run(folder, options, device, stop)
    except (ValueError, OSError) as error:
        _refuse(error)
    finish(code)


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


def start_distributed() -> torch.device:
    """Process group from torchrun's environment (none for one process), and this rank's device."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
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
    if world > 1:
        dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
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


def run(folder: Path, options: RunOptions, device: torch.device, stop: StopSignal) -> int:
    """Build the executor and train; rank 0 writes the log and prints. Returns the exit code."""
    layout = load_layout(folder)
    mesh.start(layout.mesh, device)
    rank = dist.get_rank() if dist.is_initialized() else 0
    beats = Path(options.out) / "beats"
    beacon = Beacon(beats, rank)
    Watch(beats, rank, mesh.world(), beacon, options.hang_after)
    say: Callable[[str], None] = print_line if rank == 0 else _silent
    return Session(folder, layout, options, device, beacon, stop, say, logs=rank == 0).train()


def print_line(text: str) -> None:
    print(text, flush=True)


def _silent(text: str) -> None:
    return None
