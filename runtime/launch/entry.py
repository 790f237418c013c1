"""Where a rank's process begins: watched before it reads anything large, torch among it."""

import argparse
import faulthandler
import gc
import math
import os
import sys
import time
from functools import partial
from pathlib import Path

from ..dry import command as dry
from ..dry.command import DRY
from ..training.options import RunOptions, add_arguments, run_options
from ..training.spans import program_tokens_per_step
from . import device_settings
from .environment import rank, world
from .heartbeat import LAUNCH, Beacon
from .watchdog import Watch, start_limit_s

# Rank 0 speaks for all when all fail alike: others wait so long before they speak for themselves.
_AFTER_RANK_0_S = 1.0
# A process whose interpreter is blocked ends after this many times the limit of the start.
_BLOCKED_TIMES = 1.5


def main(folder: Path) -> None:
    """Train the program in `folder` with the command line's options, or run it dry; exit code 2 on
    bad input."""
    if DRY in sys.argv[1:]:
        sys.exit(dry.main(folder))
    parser = argparse.ArgumentParser(description=f"Run the program in {folder.name}")
    add_arguments(parser)
    given = parser.parse_args()
    try:
        device_settings.set_for(folder)
        options = run_options(vars(given), partial(program_tokens_per_step, folder))
        beacon = watched(options)
        gc.disable()  # it would look through what torch is made of, all of which stays
        from . import worker

        gc.enable()
        faulthandler.cancel_dump_traceback_later()
        code = worker.launch(folder, options, beacon)
    except (ValueError, OSError) as error:
        _refuse(error)
    worker.finish(code)


def watched(options: RunOptions) -> Beacon:
    """Return this rank's beacon, marked and watched: from here on no rank hangs unseen.

    While a library is loaded no thread of Python's may run, so that a timer in C stands by, too: it
    prints where each thread stands.
    """
    beats = Path(options.out) / "beats"
    beacon = Beacon(beats, rank())
    Watch(beats, rank(), world(), beacon, options.hang_after)
    limit_s = _BLOCKED_TIMES * start_limit_s(options.hang_after)
    if math.isfinite(limit_s):
        faulthandler.dump_traceback_later(limit_s, exit=True)
    beacon.mark(LAUNCH)
    return beacon


def _refuse(error: ValueError | OSError) -> None:
    """One line on stderr, exit code 2, or that of the error."""
    if rank():
        time.sleep(_AFTER_RANK_0_S)
    where = f"rank {rank()}: " if rank() else ""
    print(f"error: {where}{error}", file=sys.stderr, flush=True)
    os._exit(getattr(error, "code", 2))
