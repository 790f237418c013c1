"""An end to a run that makes no progress, with the name of the rank that blocks the others.

A watch thread in each rank, begun with its process, signs every second that the process lives, ends
it when its marks stop, and names the culprit: a rank that has not come to its first mark, one whose
process signs no longer, else the one that has stood at its mark for longest.

Note: no clock is compared with another host's, as the two may differ. What counts is when *this*
process saw another's file change, by its own monotonic clock. How long a rank has stood at its mark
is then the time from mark to last signature by that rank's clock, and the time since we saw that
signature by ours. Ranks of one machine share a clock, which tells milliseconds.
"""

import math
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..host import host_name
from .heartbeat import CLOCK, LAUNCH, RENDEZVOUS, START, Beacon, Beat, read_beat

HUNG = 3  # exit code of a rank whose watch ended the run
# Environment variable: process id of the launcher on this machine. Without it the ranks would run
# on and write where the next run writes.
LAUNCHER = "MESHWRIGHT_LAUNCHER"

_TICK_S = 1.0
# So long before its limit a watch begins to look at the others; one whose file does not change for
# so long is taken for dead.
_LOOK_S, DEAD_S = 5.0, 2.0
# All up to the first step, which waits for the slowest rank's start and compiles, has so many times
# as long as a step.
_START_TIMES = 10


def start_limit_s(limit_s: float) -> float:
    """Seconds without progress that end a run before its first step is done; inf for never."""
    return _START_TIMES * (limit_s or math.inf)


def stands_still(limit_s: float, rank: int, beat: Beat | None, host: str) -> str:
    """The message that ends a run. beat: of the straggler; host: where it has none."""
    where = (
        f"{beat.host} is the straggler, at {beat}" if beat else f"{host} has not come to its start"
    )
    hint = "raise --hang-after if a step may take longer"
    return f"error: no progress for {limit_s:g} s: rank {rank} on {where}; {hint}"


@dataclass(frozen=True)
class Sighting:
    """A rank's beat, and when by our clock it was first seen so."""

    beat: Beat
    seen_s: float

    def stood_s(self, now_s: float) -> float:
        """Return the seconds since the rank made its mark."""
        if self.beat.clock == CLOCK:
            return now_s - self.beat.marked_s
        return max(self.beat.signed_s - self.beat.marked_s, 0.0) + now_s - self.seen_s


class Sightings:
    """The ranks' beats as they were seen. A beat that is there from the start is of an earlier run,
    until it changes."""

    def __init__(self, folder: Path, ranks: Sequence[int]) -> None:
        self.folder, self.ranks = folder, ranks
        self._before = {rank: read_beat(folder, rank) for rank in ranks}
        self.of: dict[int, Sighting] = {}

    def look(self) -> None:
        for rank in self.ranks:
            beat, known = read_beat(self.folder, rank), self.of.get(rank)
            if beat and beat != (known.beat if known else self._before[rank]):
                self.of[rank] = Sighting(beat, time.monotonic())

    def holding_up(self) -> tuple[int, Beat | None] | None:
        """The rank that the others wait for: one whose beat did not change for DEAD_S seconds,
        else the one least far in the start, else the one that stands at its mark for longest.

        A rank without a beat is waited for while one stands at the rendezvous; after that all have
        one, and a rank that seems to have none keeps it on another host's disk.
        """
        now, absent = time.monotonic(), set(self.ranks) - self.of.keys()
        starting = any(seen.beat.kind in (LAUNCH, RENDEZVOUS) for seen in self.of.values())
        if absent and starting:
            return min(absent), None

        def order(rank: int) -> tuple[bool, int, float]:
            seen = self.of[rank]
            phase = START.index(seen.beat.kind) if seen.beat.kind in START else len(START)
            return now - seen.seen_s <= DEAD_S, phase, -seen.stood_s(now)

        rank = min(self.of, key=order, default=None)
        return None if rank is None else (rank, self.of[rank].beat)


class Watch:
    """Ends the process with HUNG when its beacon was not marked for `limit_s` seconds; 0: never.

    All up to the first step has ten times as long. Ends it, too, when the launcher that started it
    is gone.
    """

    def __init__(self, folder: Path, rank: int, world: int, beacon: Beacon, limit_s: float) -> None:
        self.rank, self.world, self.beacon, self.limit_s = rank, world, beacon, limit_s
        self.tick_s = min(_TICK_S, (limit_s or math.inf) / 4)
        self.began_s = time.monotonic()
        self.folder = folder
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        sightings = Sightings(self.folder, range(self.world))
        while True:
            self.beacon.sign()
            time.sleep(self.tick_s)
            if os.environ.get(LAUNCHER, str(os.getppid())) != str(os.getppid()):
                print("error: the launcher is gone; ending", file=sys.stderr, flush=True)
                os._exit(HUNG)
            limit_s, stood_s = self._limit_s(), self._stood_s()
            if stood_s > limit_s - _LOOK_S:
                sightings.look()
            if stood_s > limit_s:
                self._end(sightings, limit_s)

    def _limit_s(self) -> float:
        starts = self.beacon.step <= self.beacon.first_step
        return start_limit_s(self.limit_s) if starts else self.limit_s or math.inf

    def _stood_s(self) -> float:
        beat = self.beacon.beat
        return time.monotonic() - (beat.marked_s if beat else self.began_s)

    def _end(self, sightings: Sightings, limit_s: float) -> None:
        rank, beat = sightings.holding_up() or (self.rank, self.beacon.beat)
        print(stands_still(limit_s, rank, beat, self._host_of(rank)), file=sys.stderr, flush=True)
        os._exit(HUNG)

    def _host_of(self, rank: int) -> str:
        """Of a rank that has not said it: torchrun numbers ranks node by node."""
        per_node = int(os.environ.get("LOCAL_WORLD_SIZE", self.world))
        if rank // per_node == self.rank // per_node:
            return host_name()
        return f"node {rank // per_node}"
