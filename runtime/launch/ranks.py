"""The processes of a program's ranks on this machine: started, waited for, and answered for."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import IO

from ..checkpoint.manifest import complete
from ..fast_mark import MARK
from ..host import host_name
from ..own_code import IMPORT_PATH
from ..training.options import ABORTED, STOPPED, UNFIT
from ..training.past_run import COMMAND, FOLDER
from .heartbeat import read_beat
from .watchdog import HUNG, LAUNCHER, Sightings, stands_still

# After the first rank died the others have so long to say what they know of it.
_GRACE_S = 2.0
_LOOK_EVERY_S = 1.0
# What a signal that nobody sent on purpose means most often.
_HINTS: dict[int, str] = {
    signal.SIGKILL: " (out of memory?)",
    signal.SIGBUS: " (a memory-mapped file, of data or weights, got shorter while it was read, or "
    "its disk failed, or /dev/shm is full)",
}


@dataclass
class Rank:
    """A rank's process; its standard error goes to a file, read when it fails."""

    number: int
    process: subprocess.Popen
    stderr: IO[str]

    def said(self) -> list[str]:
        self.stderr.seek(0)
        return self.stderr.read().splitlines()


@dataclass(frozen=True)
class Place:
    """Ranks that run on this machine, and the address where all meet.

    first: number of the first here. here: how many. world: ranks on all machines. address, port:
    of the rendezvous; port 0 where there is one rank.
    """

    first: int
    here: int
    world: int
    address: str = "127.0.0.1"
    port: int = 0

    @property
    def ranks(self) -> range:
        """Return the numbers of the ranks here."""
        return range(self.first, self.first + self.here)


def environment_of(rank: int, place: Place) -> dict[str, str]:
    """Return the environment of a rank, with what torch's env:// rendezvous reads."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    # What this process can import by name, a rank can: it looks there last, in the same order.
    searched = (*sys.path, environment.pop("PYTHONPATH", ""), os.getcwd())
    environment[IMPORT_PATH] = os.pathsep.join(filter(None, searched))
    environment.update(RANK=str(rank), WORLD_SIZE=str(place.world))
    environment.update(LOCAL_RANK=str(rank - place.first), LOCAL_WORLD_SIZE=str(place.here))
    environment.update(MASTER_ADDR=place.address, MASTER_PORT=str(place.port))
    environment[LAUNCHER] = str(os.getpid())
    environment.setdefault(COMMAND, command_line())
    environment.setdefault(FOLDER, os.getcwd())
    return environment


def command_line() -> str:
    """Return the user's command line; `python -m` gives a file's path in place of its name."""
    name = Path(sys.argv[0]).name
    return shlex.join(["meshwright" if name == "cli.py" else name, *sys.argv[1:]])


def start_rank(
    folder: Path, words: list[str], environment: dict[str, str], out: int, errors: Path
) -> Rank:
    stderr = open(errors, "w+", encoding="utf-8", errors="replace")
    process = subprocess.Popen(words, cwd=folder, env=environment, stdout=out, stderr=stderr)
    return Rank(int(environment["RANK"]), process, stderr)


def wait_for(ranks: list[Rank], silent: Callable[[list[Rank]], str]) -> tuple[list[Rank], str]:
    """Wait until all ended, or one failed and the others had their time.

    Returns those that failed, in the order in which they were seen. Ends as well when `silent` has
    something to say of those that run, which is returned, too.
    """
    failed: list[Rank] = []
    deadline, look_at = float("inf"), 0.0
    while time.monotonic() < deadline:
        codes = [rank.process.poll() for rank in ranks]
        for rank, code in zip(ranks, codes, strict=True):
            if code not in (None, 0, STOPPED) and rank not in failed:
                failed.append(rank)
                deadline = min(deadline, time.monotonic() + _GRACE_S)
        if None not in codes:
            break
        if not failed and time.monotonic() > look_at:
            look_at = time.monotonic() + _LOOK_EVERY_S
            said = silent([r for r, code in zip(ranks, codes, strict=True) if code is None])
            if said:
                return failed, said
        time.sleep(0.05)
    return failed, ""


def silent_rank(sightings: Sightings, since_s: float, limit_s: float, ranks: list[Rank]) -> str:
    """Message about a rank that gave no sign of life for so long: its own watch stands, too, or
    never began, and there may be no other rank to notice."""
    sightings.look()
    for rank in ranks:
        seen = sightings.of.get(rank.number)
        if time.monotonic() - (seen.seen_s if seen else since_s) > limit_s:
            beat = seen.beat if seen else None
            return stands_still(limit_s, rank.number, beat, host_name())
    return ""


def report(failed: list[Rank], ranks: list[Rank], beats: Path) -> tuple[int, str]:
    """The exit code, and what to say: a refusal's own message alone; of a death the rank, where it
    stood, and what it said."""
    if not failed:
        return max(rank.process.returncode for rank in ranks), ""
    for rank in sorted(failed, key=lambda r: r.number):
        message = _message(rank.said())
        if message and rank.process.returncode in (2, HUNG, ABORTED, UNFIT):
            return rank.process.returncode, message
    # A rank that was killed is the cause; one that raised may only have lost its peer.
    rank = min(failed, key=lambda r: r.process.returncode >= 0)
    beat = read_beat(beats, rank.number)
    where = f"{beat.host}, at {beat}" if beat else host_name()
    death = _death(rank, bool(saved_in(beats.parent)))
    said = [*rank.said(), f"error: rank {rank.number} on {where}: {death}"]
    return 1, "\n".join(said)


def _message(said: list[str]) -> str:
    """The first "error: " line with the indented ones that go on behind it; "" without one."""
    start = next((n for n, line in enumerate(said) if line.startswith("error: ")), len(said))
    more = takewhile(lambda line: line.startswith("  "), said[start + 1 :])
    return "\n".join([*said[start : start + 1], *more])


def _death(rank: Rank, saved: bool) -> str:
    code = rank.process.returncode
    how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
    way = "go on with --resume auto" if saved else "it had saved nothing"
    return f"{how}{_HINTS.get(-code, '')}; the run ended, {way}"


def saved_in(out: Path) -> set[tuple[str, int]]:
    """Checkpoints of a run's folder, each with the time of its making: names come again. The file
    that tells of the fast tier is among them."""
    paths = [*complete(out / "checkpoints"), *out.glob(MARK)]
    return {(p.name, p.stat().st_mtime_ns) for p in paths}
