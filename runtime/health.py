"""Where every rank stands, and an end to a run that stands still.

Each rank marks its progress in a small memory-mapped file, OUT/beats/rank_00000: a mark costs a
memory write. The first, LAUNCH, comes before ranks wait for each other. A watch thread in each rank
signs every second that the process lives, ends it when its marks stop, and names the rank that
holds the others up: one that has not come to its first mark, one whose process signs no longer,
else the one whose last mark is oldest. The launcher reads the files to say where a dead rank stood.
"""

import math
import mmap
import os
import socket
import struct
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

# Marks of the start, in this order: before a rank waits for others, while it waits for all to come,
# and while all make groups.
LAUNCH, RENDEZVOUS, GROUPS = "LAUNCH", "RENDEZVOUS", "GROUPS"
_START = (LAUNCH, RENDEZVOUS, GROUPS)
HUNG = 3  # exit code of a rank whose watch ended the run
# Environment variable: process id of the launcher on this machine. Without it the ranks would run
# on and write where the next run writes.
LAUNCHER = "MESHWRIGHT_LAUNCHER"

_SIGN = struct.Struct("<d")  # when the watch signed last
_MARK = struct.Struct("<dqqq16s64s")  # time, step, stage, microbatch, kind, host
_SIZE = _SIGN.size + _MARK.size
_TICK_S = 1.0
# All up to the first step, which waits for the slowest rank's start and compiles, has so many times
# as long as a step.
_START_TIMES = 10


@dataclass(frozen=True)
class Beat:
    """A rank's last mark. time_s, signed_s: since the epoch. microbatch -1: of none."""

    signed_s: float
    time_s: float
    step: int
    stage: int
    microbatch: int
    kind: str
    host: str

    @property
    def last_s(self) -> float:
        """When its process was last known to live."""
        return max(self.signed_s, self.time_s)

    def __str__(self) -> str:
        micro = f", micro-batch {self.microbatch}" if self.microbatch >= 0 else ""
        return f"step {self.step}, stage {self.stage}, action {self.kind}{micro}"


class Beacon:
    """This rank's marks; without a folder they go nowhere. The folder is made at the first mark."""

    def __init__(self, folder: Path | None, rank: int) -> None:
        self.folder, self.rank, self.step = folder, rank, 0
        self.first_step: float = math.inf  # of this process; known once training begins
        self._map: mmap.mmap | None = None
        self._host = socket.gethostname().encode()[:64]

    def _open(self, folder: Path) -> mmap.mmap:
        folder.mkdir(parents=True, exist_ok=True)
        path = beat_path(folder, self.rank)
        path.write_bytes(bytes(_SIZE))
        with open(path, "r+b") as file:
            return mmap.mmap(file.fileno(), _SIZE)

    def mark(self, kind: str, stage: int = 0, microbatch: int = -1) -> None:
        """The rank is about to do `kind`."""
        if self.folder is None:
            return
        self._map = self._map or self._open(self.folder)
        values = (time.time(), self.step, stage, microbatch, kind.encode()[:16], self._host)
        _MARK.pack_into(self._map, _SIGN.size, *values)

    def sign(self) -> None:
        """The process lives."""
        if self._map is not None:
            _SIGN.pack_into(self._map, 0, time.time())

    @property
    def beat(self) -> Beat | None:
        return None if self._map is None else _beat(self._map)


def beat_path(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank:05d}"


def read_beat(folder: Path, rank: int) -> Beat | None:
    """A rank's last mark, None when it made none."""
    try:
        data = beat_path(folder, rank).read_bytes()
    except OSError:
        return None
    return _beat(data) if len(data) == _SIZE and any(data) else None


def _beat(data: bytes | mmap.mmap) -> Beat:
    (signed,) = _SIGN.unpack_from(data)
    when, step, stage, microbatch, kind, host = _MARK.unpack_from(data, _SIGN.size)
    return Beat(
        signed,
        when,
        step,
        stage,
        microbatch,
        kind.rstrip(b"\0").decode(),
        host.rstrip(b"\0").decode(),
    )


def start_limit_s(limit_s: float) -> float:
    """Seconds without progress that end a run before its first step is done; inf for never."""
    return _START_TIMES * (limit_s or math.inf)


def holding_up(folder: Path, world: int, since_s: float = 0.0) -> tuple[int, Beat | None] | None:
    """The rank that the others wait for: one that no longer signs, else the one least far in the
    start, else that of the oldest mark.

    since_s: marks of processes that were gone then are an earlier run's, and count for nothing. A
    rank without any is waited for while one stands at the rendezvous; after that all have marks,
    and one that seems to have none keeps them on another host's disk.
    """
    beats = [(rank, read_beat(folder, rank)) for rank in range(world)]
    known = [(rank, beat) for rank, beat in beats if beat and beat.last_s >= since_s - 2 * _TICK_S]
    absent = set(range(world)) - {rank for rank, _ in known}
    if absent and any(beat.kind in (LAUNCH, RENDEZVOUS) for _, beat in known):
        return min(absent), None
    newest = max((beat.signed_s for _, beat in known), default=0.0)

    def order(item: tuple[int, Beat]) -> tuple[bool, int, float]:
        _, beat = item
        phase = _START.index(beat.kind) if beat.kind in _START else len(_START)
        return beat.signed_s > newest - 2 * _TICK_S, phase, beat.time_s

    return min(known, key=order, default=None)


def stands_still(limit_s: float, rank: int, beat: Beat | None, host: str) -> str:
    """The message that ends a run. beat: of the rank that holds it up; host: where it has none."""
    where = f"{beat.host} holds it up, at {beat}" if beat else f"{host} has not come to its start"
    hint = "raise --hang-after if a step may take longer"
    return f"error: no progress for {limit_s:g} s: rank {rank} on {where}; {hint}"


class Watch:
    """Ends the process with HUNG when its beacon was not marked for `limit_s` seconds; 0: never.

    All up to the first step has ten times as long. Ends it, too, when the launcher that started it
    is gone.
    """

    def __init__(self, folder: Path, rank: int, world: int, beacon: Beacon, limit_s: float) -> None:
        self.folder, self.rank, self.world = folder, rank, world
        self.beacon, self.limit_s = beacon, limit_s
        self.since_s = time.time()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.beacon.sign()
            time.sleep(min(_TICK_S, (self.limit_s or math.inf) / 4))
            if os.environ.get(LAUNCHER, str(os.getppid())) != str(os.getppid()):
                print("error: the launcher is gone; ending", file=sys.stderr, flush=True)
                os._exit(HUNG)
            beat = self.beacon.beat
            if beat is None:
                continue
            starts = beat.step <= self.beacon.first_step
            limit_s = start_limit_s(self.limit_s) if starts else self.limit_s or math.inf
            if time.time() - beat.time_s > limit_s:
                self._end(beat, limit_s)

    def _end(self, own: Beat, limit_s: float) -> None:
        found = holding_up(self.folder, self.world, self.since_s)
        rank, beat = found or (self.rank, own)
        print(stands_still(limit_s, rank, beat, self._host_of(rank)), file=sys.stderr, flush=True)
        os._exit(HUNG)

    def _host_of(self, rank: int) -> str:
        """Of a rank that has not said it: torchrun numbers ranks node by node."""
        per_node = int(os.environ.get("LOCAL_WORLD_SIZE", self.world))
        if rank // per_node == self.rank // per_node:
            return socket.gethostname()
        return f"node {rank // per_node}"
