"""Health of a machine's GPUs: temperature, clocks, memory errors, faults that the driver tells.

The package nvidia-ml-py (pynvml) reads them; without it nothing is sampled.
"""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..atomic_file import write_atomic

EVERY_S = 10.0
FOLDER = "health"
# Reasons for lower clocks that are no fault: nothing to do, what the user has set, and the power
# that large matmuls take.
_USUAL = 0x1 | 0x2 | 0x4


@dataclass(frozen=True)
class GpuHealth:
    """A reading of one card. clock_mhz, most_mhz: of its multiprocessors now, and at most.
    ecc_errors: in its memory, not corrected, since it was last reset; None where it counts none.
    throttled: the driver's bits for why clocks are lower, those that are no fault left out. xid:
    the driver's number of the last fault, 0 for none."""

    index: int
    name: str
    temperature_c: int
    clock_mhz: int
    most_mhz: int
    power_w: float
    ecc_errors: int | None
    throttled: int
    xid: int = 0


def complaints(before: GpuHealth | None, now: GpuHealth) -> list[str]:
    """Return what is wrong with a card, as far as it was not before."""
    said = []
    errors = before.ecc_errors if before else None
    if now.ecc_errors and now.ecc_errors > (errors or 0):
        said.append(
            f"{now.ecc_errors} memory errors that ECC cannot correct ({errors or 0} before)"
        )
    if now.xid and (before is None or now.xid != before.xid):
        said.append(f"the driver tells of fault {now.xid} (Xid)")
    if now.throttled and not (before and before.throttled):
        said.append(
            f"slowed down to {now.clock_mhz} of {now.most_mhz} MHz at {now.temperature_c} C "
            f"(reasons {now.throttled:#x})"
        )
    return [f"GPU {now.index} ({now.name}): {text}" for text in said]


class Health:
    """Readings of this machine's cards every EVERY_S seconds, in a thread, until it is closed.

    The last stand in OUT/health/HOST.json. say: is told what goes wrong, once.
    """

    def __init__(self, out: Path, host: str, say: Callable[[str], None], read: Any) -> None:
        """read: gives the readings of all cards."""
        self.path, self.host, self.say, self.read = out / FOLDER / f"{host}.json", host, say, read
        self._before: dict[int, GpuHealth] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._closed.wait(EVERY_S):
            with suppress(Exception):  # the run does not depend on its thermometer
                self.look()

    def look(self) -> None:
        """Take a reading, keep it, and say what is wrong."""
        found: list[GpuHealth] = self.read()
        for card in found:
            for text in complaints(self._before.get(card.index), card):
                self.say(f"{self.host}: {text}")
            self._before[card.index] = card
        self.path.parent.mkdir(parents=True, exist_ok=True)
        said = {"time": time.time(), "host": self.host, "gpus": [asdict(card) for card in found]}
        write_atomic(self.path, json.dumps(said) + "\n")

    def close(self) -> None:
        """Take no more readings."""
        self._closed.set()


def reader() -> Callable[[], list[GpuHealth]] | None:
    """Return what reads the cards of this machine; None without pynvml or a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        events = pynvml.nvmlEventSetCreate()
    except Exception:
        return None
    for handle in handles:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    xids: dict[int, int] = {}

    def read() -> list[GpuHealth]:
        with suppress(pynvml.NVMLError):
            while True:
                event = pynvml.nvmlEventSetWait_v2(events, 0)
                xids[pynvml.nvmlDeviceGetIndex(event.device)] = int(event.eventData)
        return [_card(pynvml, n, handle, xids.get(n, 0)) for n, handle in enumerate(handles)]

    return read


def card_of(uuid: str) -> GpuHealth | None:
    """Return the reading of one card of this machine, by the driver's name of it; None without
    pynvml or a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return _card(pynvml, pynvml.nvmlDeviceGetIndex(handle), handle, 0)
    except Exception:
        return None


def _card(nvml: Any, index: int, handle: Any, xid: int) -> GpuHealth:
    errors = None
    with suppress(nvml.NVMLError):
        kind, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        errors = int(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter))
    name = nvml.nvmlDeviceGetName(handle)
    return GpuHealth(
        index,
        name.decode() if isinstance(name, bytes) else name,
        nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        errors,
        int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) & ~_USUAL,
        xid,
    )
