"""Where every rank stands: marks of progress in a small memory-mapped file, OUT/beats/rank_00000.

A mark costs a memory write. The first, LAUNCH, comes before ranks wait for each other. Beside the
mark stands a signature of the process, renewed every second that it lives (see watchdog.py). The
launcher reads the files, too, to say where a dead rank stood.
"""

import math
import mmap
import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from uuid import NAMESPACE_DNS, UUID, uuid5

from ..host import host_name

# Marks of the start, in this order: before a rank waits for others, while it waits for all to come,
# and while all make groups.
LAUNCH, RENDEZVOUS, GROUPS = "LAUNCH", "RENDEZVOUS", "GROUPS"
START = (LAUNCH, RENDEZVOUS, GROUPS)

_SIGN = struct.Struct("<d")  # when the watch signed last
_MARK = struct.Struct("<dqqq16s48s16s")  # time, step, stage, microbatch, kind, host, clock
_SIZE = _SIGN.size + _MARK.size
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def _clock() -> bytes:
    """A name, of 16 bytes, of the clock that `time.monotonic` reads: all processes of a machine
    share it from boot to boot."""
    try:
        return UUID(_BOOT.read_text().strip()).bytes
    except (OSError, ValueError):
        return uuid5(NAMESPACE_DNS, socket.gethostname()).bytes


CLOCK = _clock()


@dataclass(frozen=True)
class Beat:
    """A rank's last mark. signed_s, marked_s: by the monotonic clock that `clock` names, of which
    only differences mean something elsewhere. microbatch -1: of none."""

    signed_s: float
    marked_s: float
    step: int
    stage: int
    microbatch: int
    kind: str
    host: str
    clock: bytes

    def __str__(self) -> str:
        micro = f", micro-batch {self.microbatch}" if self.microbatch >= 0 else ""
        return f"step {self.step}, stage {self.stage}, action {self.kind}{micro}"


class Beacon:
    """Marks of this rank; without a folder they go nowhere. It is made at the first mark."""

    def __init__(self, folder: Path | None, rank: int) -> None:
        self.folder, self.rank, self.step = folder, rank, 0
        self.first_step: float = math.inf  # of this process; known once training begins
        self._map: mmap.mmap | None = None
        self._host = host_name().encode()[:48]

    def _open(self, folder: Path) -> mmap.mmap:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(
                f"--out {folder.parent}: nothing can be written there ({error.strerror}); give "
                "another folder"
            ) from None
        path = beat_path(folder, self.rank)
        path.write_bytes(bytes(_SIZE))
        with open(path, "r+b") as file:
            return mmap.mmap(file.fileno(), _SIZE)

    def mark(self, kind: str, stage: int = 0, microbatch: int = -1) -> None:
        """The rank is about to do `kind`."""
        if self.folder is None:
            return
        self._map = self._map or self._open(self.folder)
        values = (time.monotonic(), self.step, stage, microbatch, kind.encode()[:16])
        _MARK.pack_into(self._map, _SIGN.size, *values, self._host, CLOCK)

    def sign(self) -> None:
        """The process lives."""
        if self._map is not None:
            _SIGN.pack_into(self._map, 0, time.monotonic())

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
    when, step, stage, microbatch, kind, host, clock = _MARK.unpack_from(data, _SIGN.size)
    name, where = (text.rstrip(b"\0").decode(errors="replace") for text in (kind, host))
    return Beat(signed, when, step, stage, microbatch, name, where, clock)
