"""One attempt: an srun that starts an agent on each node, watched until it ended."""

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..training.options import ABORTED, STOPPED, UNFIT
from .reports import (
    NodeEnd,
    at_fault,
    has_failed,
    read_ends,
    ready_nodes,
    step_number,
    tell_stop,
)
from .scheduler import Allocation, cancel_step, silent

_TICK_S = 0.1
# After the first node failed, the others have so long to tell how they ended; then they are lost.
_GRACE_S = 8.0
# srun, asked to end, has so long before it is killed.
_KILL_S = 5.0


@dataclass(frozen=True)
class StepEnd:
    """code: of the ranks, the worst of all nodes. failed: nodes at fault, with why."""

    code: int
    failed: dict[str, str]


class Step:
    """The agents of an attempt. folder: of the attempt, which all nodes read and write."""

    def __init__(
        self, allocation: Allocation, nodes: Sequence[str], words: Sequence[str], folder: Path
    ) -> None:
        """words: the command of an agent."""
        self.allocation, self.nodes, self.folder = allocation, tuple(nodes), folder
        srun = [
            "srun",
            "--overlap",
            f"--nodes={len(nodes)}",
            f"--nodelist={','.join(nodes)}",
            f"--ntasks={len(nodes)}",
            "--ntasks-per-node=1",
            "--distribution=block",
            "--kill-on-bad-exit=0",
            "--wait=0",
            *words,
        ]
        self.process = subprocess.Popen(srun)
        self._stopping = False  # ranks are to stop, and no signal has told them
        self._cut_short = False  # nodes may have been ended before they could tell of it

    def stop(self) -> None:
        """Ask all ranks to save and stop: by a file, as a signal would end a node that is not ready
        for it, and by a signal once all are, as it is sooner there."""
        tell_stop(self.folder)
        self._stopping = True

    def wait(self, tick: Callable[[], None]) -> StepEnd:
        """Wait until all nodes ended; `tick` is called again and again meanwhile."""
        failed_s = None
        while self.process.poll() is None:
            tick()
            self._signal_stop()
            time.sleep(_TICK_S)
            ends = read_ends(self.folder)
            if failed_s is None and any(map(has_failed, ends.values())):
                failed_s = time.monotonic()
            if failed_s is not None and time.monotonic() - failed_s > _GRACE_S:
                self.end()
        return self._ended(read_ends(self.folder))

    def _signal_stop(self) -> None:
        if self._stopping and ready_nodes(self.folder) >= set(self.nodes):
            self._stopping = False
            self.process.send_signal(signal.SIGUSR1)

    def end(self) -> None:
        """End what is left of the attempt, on nodes that do not answer, too."""
        self._cut_short = True
        cancel_step(self.allocation.job, step_number(self.folder) or "0")
        self.process.terminate()
        try:
            self.process.wait(_KILL_S)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _ended(self, ends: dict[str, NodeEnd]) -> StepEnd:
        """Return how the attempt ended; nodes that told nothing count as rank deaths."""
        codes = [ends[node].code if node in ends else 1 for node in self.nodes]
        failing = [code for code in codes if code not in (0, STOPPED)]
        if not failing:
            return StepEnd(max(codes), {})
        final = next((code for code in failing if code in (2, ABORTED, UNFIT)), None)
        untold = [node for node in self.nodes if node not in ends]
        # A step that is ended as a whole takes healthy nodes with it.
        wordless = [] if self._cut_short or len(untold) == len(self.nodes) else untold
        failed = at_fault(ends, sorted(silent(untold)), wordless)
        code = final or next((ends[n].code for n in failed if n in ends), 1)
        return StepEnd(code, {} if final else failed)
