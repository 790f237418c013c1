"""The ranks of one node of a job, started and answered for by one process.

A node tells by files in the attempt's folder how its ranks ended, and ends its own when another
node's failed: a rank that waits for one that is gone would wait as long as its watch allows.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from ..host import host_name
from ..launch.interface import name_interface
from ..launch.stops import STOPS
from ..training.options import ABORTED, UNFIT, add_arguments, run_options
from ..training.spans import program_tokens_per_step
from .reports import (
    NodeEnd,
    has_failed,
    is_stopped,
    read_begun,
    read_ends,
    tell_end,
    tell_step,
    without_rank,
)

# Ranks whose peer is gone have so long to say what they know of it.
_GRACE_S = 3.0
# The first node has so long to say what another one would say, too.
_ALIKE_S = 2.0
REFUSED = 2
# Codes of what all ranks refuse alike, and which no restart changes.
FINAL = (REFUSED, ABORTED, UNFIT)


def main(folder: Path, words: list[str]) -> int:
    """Run this node's ranks of the program in `folder`; return the exit code.

    words: the attempt's folder, address and port of the rendezvous, then options of the run.
    """
    # A stop that comes while torch is imported waits until it can be passed on.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    parser = argparse.ArgumentParser(description=f"Run one node's ranks of {folder.name}")
    parser.add_argument("attempt", type=Path)
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    add_arguments(parser)
    given = parser.parse_args(words)
    tell_step(given.attempt, host_name(), os.environ.get("SLURM_STEP_ID", ""))
    end = _Node(folder, given).run()
    tell_end(given.attempt, end)
    return end.code


class _Node:
    """This node of an attempt. given: parsed arguments."""

    def __init__(self, folder: Path, given: argparse.Namespace) -> None:
        self.folder, self.given, self.attempt = folder, given, given.attempt
        self.name = host_name()
        self._failed_s: float | None = None  # when another node was first seen to have failed
        self._elsewhere = self._stopped = False

    def run(self) -> NodeEnd:
        """Run the ranks; return how they ended."""
        from ..launch.launcher import Ended, check_here, run_ranks

        try:
            options = self._options()
            place = self._place()
            check_here(self.folder, options, place.here)
            ended = run_ranks(
                self.folder, options, place, self.attempt, elsewhere=self._told_elsewhere
            )
        except (ValueError, OSError) as error:
            ended = Ended(REFUSED, said=f"error: {error}")
        if ended.said and not (ended.code in FINAL and self._is_told(ended.said)):
            print(ended.said, file=sys.stderr, flush=True)
        cause = not self._elsewhere
        return NodeEnd(self.name, ended.code, ended.said, ended.killed, cause, time.time())

    def _is_told(self, said: str) -> bool:
        """Tell whether the first node says the same, which it has _ALIKE_S to do."""
        begun, until = read_begun(self.attempt), time.monotonic() + _ALIKE_S
        if begun is None or self.name == begun.nodes[0] or self._elsewhere:
            return False
        while time.monotonic() < until:
            first = read_ends(self.attempt).get(begun.nodes[0])
            if first is not None:
                return without_rank(first.said) == without_rank(said)
            time.sleep(0.1)
        return False

    def _options(self) -> dict[str, object]:
        values = {k: v for k, v in vars(self.given).items() if v is not None}
        run_options(values, lambda: program_tokens_per_step(self.folder))
        return {k: v for k, v in values.items() if k not in ("attempt", "address", "port")}

    def _place(self):  # type: ignore[no-untyped-def]
        from ..launch.launcher import num_ranks
        from ..launch.ranks import Place

        world, begun = num_ranks((self.folder / "layout.py").read_text()), read_begun(self.attempt)
        if begun is None or self.name not in begun.nodes:
            raise ValueError(f"{self.attempt} does not say which ranks run on {self.name}")
        here, number = world // len(begun.nodes), begun.nodes.index(self.name)
        name_interface(self.given.address, self.given.port)
        return Place(number * here, here, world, self.given.address, self.given.port)

    def _told_elsewhere(self) -> str:
        """Pass on a stop that the supervisor told by a file; return what ends the ranks here."""
        if not self._stopped and is_stopped(self.attempt):
            self._stopped = True
            os.kill(os.getpid(), signal.SIGUSR1)
        return self._failed_elsewhere()

    def _failed_elsewhere(self) -> str:
        """Return what to say where another node's ranks failed some seconds ago, else ""."""
        others = [end for end in read_ends(self.attempt).values() if end.node != self.name]
        failed = [end for end in others if has_failed(end)]
        if not failed:
            return ""
        self._failed_s = self._failed_s or time.monotonic()
        if time.monotonic() - self._failed_s < _GRACE_S:
            return ""
        self._elsewhere = True
        return f"error: ended with the ranks of {failed[0].node}"
