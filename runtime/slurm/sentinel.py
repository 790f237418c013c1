"""A process on another node of a job, which queues the job again when its supervisor is gone.

Where the node of a job's script is lost, Slurm (--no-kill) keeps the other nodes for a job that
nothing runs any more. The supervisor shows that it lives by a file, which changes all the time.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..atomic_file import write_atomic
from ..host import host_name
from ..roles import SENTINEL
from .scheduler import SlurmError, job_state, requeue, silent

_SIGN, _LOST = "alive", "lost.json"
_SIGN_EVERY_S, _LOOK_EVERY_S = 2.0, 2.0
# A supervisor that showed nothing for that long is asked for.
_SILENT_S = 20.0
_AGAIN_S = 10.0


class Signs:
    """A thread that shows in a folder that this process lives, until it ends."""

    def __init__(self, job: str, folder: Path) -> None:
        """Raises SlurmError where another job's supervisor shows that it lives there."""
        folder.mkdir(parents=True, exist_ok=True)
        self.job, self.path, self.host = job, folder / _SIGN, host_name()
        self._check_alone()
        self._show(0)
        threading.Thread(target=self._go_on, daemon=True).start()

    def _check_alone(self) -> None:
        try:
            other = self.path.read_text().split()[1]
        except (OSError, IndexError):
            return
        if other != self.job and job_state(other) == "RUNNING":
            raise SlurmError(
                f"{self.path.parent.parent}: job {other} runs there, 1 job can; cancel it, or give "
                "another --out"
            )

    def _show(self, number: int) -> None:
        self.path.write_text(f"{self.host} {self.job} {os.getpid()} {number}")

    def _go_on(self) -> None:
        number = 0
        while True:
            time.sleep(_SIGN_EVERY_S)
            number += 1
            try:
                self._show(number)
            except OSError:  # a full disk is said by those who write more
                continue


class Sentinel:
    """The sentinel of a supervisor, on one of the job's other nodes; none of a job of one node."""

    def __init__(self, job: str, folder: Path, words: Sequence[str]) -> None:
        """folder: of the signs. words: the command of the process, which takes job and folder."""
        self.job, self.folder, self.words = job, folder, list(words)
        self.process: subprocess.Popen | None = None
        self.node = ""  # where it was started

    def keep(self, nodes: Sequence[str]) -> None:
        """Start it on one of the nodes where it does not run on any of them. nodes: those that the
        job has left."""
        if self.node in nodes and self.process is not None and self.process.poll() is None:
            return
        self.end()
        others = [node for node in nodes if node != host_name()]
        if not others:
            return
        self.node = others[-1]
        srun = ["srun", "--overlap", "--quiet", "--nodes=1", "--ntasks=1", "--no-kill"]
        words = [*srun, f"--nodelist={self.node}", *self.words, self.job, str(self.folder)]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet)

    def end(self) -> None:
        """End it, before the job ends."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()


def words_of(python: str, program: Path | None) -> list[str]:
    """Return the command of the process: the program's own, or the package's where that runs."""
    if __package__.startswith("meshwright"):
        return [python, "-m", __name__]
    return [python, str(program and (program / "main.py").absolute()), SENTINEL]


def main(words: Sequence[str]) -> int:
    """Watch over a job until its supervisor is gone; then queue the job again. words: the job, and
    the folder of the signs."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # it asks ranks to save
    job, folder = words[0], Path(words[1])
    host = watch(folder, lambda host: host in silent([host]))
    write_atomic(folder / _LOST, json.dumps({"host": host, "at_s": time.time()}))
    while True:  # the controller may be away, too
        try:
            requeue(job)
            return 0
        except SlurmError:
            time.sleep(_AGAIN_S)


def watch(folder: Path, is_gone: Callable[[str], bool]) -> str:
    """Return the host of the supervisor when it has shown nothing for _SILENT_S and `is_gone`."""
    seen, since = "", time.monotonic()
    while True:
        time.sleep(_LOOK_EVERY_S)
        try:
            now = (folder / _SIGN).read_text()
        except OSError:
            now = ""
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > _SILENT_S:
            host = seen.partition(" ")[0]
            if host and is_gone(host):
                return host
            since = time.monotonic()


def lost_before(folder: Path) -> str:
    """Return the host with which the supervisor before this one was lost, once; "" for none."""
    path = folder / _LOST
    try:
        host = str(json.loads(path.read_text())["host"])
    except (OSError, ValueError, KeyError):
        return ""
    path.unlink()
    return host


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
