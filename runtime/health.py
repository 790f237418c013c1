"""Where every rank stands, and an end to a run that stands still.

Each rank marks its progress in a small memory-mapped file, OUT/beats/rank_00000: a mark costs a
memory write. A watch thread in each rank ends the process when its own marks stop, and names the
rank that stands longest. The launcher reads the same files to say where a dead rank stood.
"""

import mmap
import os
import socket
import struct
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

HUNG = 3  # exit code of a rank whose watch ended the run

_FORMAT = struct.Struct("<dqqq16s64s")  # time, step, stage, microbatch, kind, host


@dataclass(frozen=True)
class Beat:
    """A rank's last mark. time_s: since the epoch. microbatch -1: of none."""

    time_s: float
    step: int
    stage: int
    microbatch: int
    kind: str
    host: str

    def __str__(self) -> str:
        micro = f", micro-batch {self.microbatch}" if self.microbatch >= 0 else ""
        return f"step {self.step}, stage {self.stage}, action {self.kind}{micro}"


class Beacon:
    """This rank's marks; without a folder they go nowhere."""

    def __init__(self, folder: Path | None, rank: int) -> None:
        self.step, self._map = 0, None
        self._host = socket.gethostname().encode()[:64]
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        path = beat_path(folder, rank)
        path.write_bytes(bytes(_FORMAT.size))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), _FORMAT.size)
        self.mark("START")

    def mark(self, kind: str, stage: int = 0, microbatch: int = -1) -> None:
        """The rank is about to do `kind`."""
        if self._map is not None:
            values = (time.time(), self.step, stage, microbatch, kind.encode()[:16], self._host)
            _FORMAT.pack_into(self._map, 0, *values)

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
    return _beat(data) if len(data) == _FORMAT.size and any(data) else None


def _beat(data: bytes | mmap.mmap) -> Beat:
    when, step, stage, microbatch, kind, host = _FORMAT.unpack_from(data)
    return Beat(
        when, step, stage, microbatch, kind.rstrip(b"\0").decode(), host.rstrip(b"\0").decode()
    )


def standing_longest(folder: Path, world: int) -> tuple[int, Beat] | None:
    """The rank with the oldest mark; where ranks wait for one another, the one they wait for."""
    beats = [(rank, read_beat(folder, rank)) for rank in range(world)]
    known = [(rank, beat) for rank, beat in beats if beat is not None]
    return min(known, key=lambda item: item[1].time_s, default=None)


class Watch:
    """Ends the process with HUNG when its beacon has not been marked for `limit_s` seconds.

    The first step, which compiles, has ten times as long.
    """

    def __init__(self, folder: Path, rank: int, world: int, beacon: Beacon, limit_s: float) -> None:
        self.folder, self.rank, self.world = folder, rank, world
        self.beacon, self.limit_s = beacon, limit_s
        self.first_step: int | None = None
        if limit_s > 0:
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(min(1.0, self.limit_s / 4))
            beat = self.beacon.beat
            if beat is None:
                return
            self.first_step = beat.step if self.first_step is None else self.first_step
            limit_s = self.limit_s * (10 if beat.step == self.first_step else 1)
            if time.time() - beat.time_s > limit_s:
                self._end(beat, limit_s)

    def _end(self, own: Beat, limit_s: float) -> None:
        rank, beat = standing_longest(self.folder, self.world) or (self.rank, own)
        print(
            f"error: no progress for {limit_s:g} s: rank {rank} on {beat.host} stands longest, "
            f"at {beat}; raise --hang-after if a step may take longer",
            file=sys.stderr,
            flush=True,
        )
        os._exit(HUNG)
