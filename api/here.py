"""The cluster at hand: what `--cluster auto` stands for on this machine."""

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .demands import Cluster, Say

if TYPE_CHECKING:
    from meshwright.runtime.launch.machine import Gpu

AUTO = "auto"
WITHOUT_GPUS = "cpu:4"  # ranks to try things out with
# A part's memory stands for that of a card which differs by less.
_MEMORY_TOLERANCE = 0.02
_KIND, _NOWHERE = "probed", "/nowhere"
# Where drivers show that they are loaded; torch, which counts cards, takes seconds to import.
_DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/dev/kfd"))


def at_hand(given: Cluster, say: Say) -> Cluster:
    """Return the cluster, `auto` replaced by this machine's devices, which is said: as they were
    probed where the file of that is still there, else the nearest part of the catalogue.

    Raises ValueError for cards that differ, or are like no part of the catalogue.
    """
    if given.name != AUTO:
        return given
    if (path := probed()) is not None:
        say(f"planning for this machine as `meshwright probe` measured it: {path}")
        return Cluster(str(path), given.gpu_memory, given.host_memory)
    if not _drives_gpus():
        say(f"no GPU driver is loaded here: planning for {WITHOUT_GPUS}; --cluster names others")
        return Cluster(WITHOUT_GPUS, given.gpu_memory, given.host_memory)
    found = named(_gpus(), given)
    say(f"planning for this machine: {found.spec}")
    return found


def probed() -> Path | None:
    """Return the file of this machine's last probe, None where there is none any more."""
    from .kept import known

    path = Path(known(_KIND, _machine()) or _NOWHERE)
    return path if path.is_file() else None


def remember_probed(path: Path) -> str:
    """Keep where this machine's probe was written; return why that is not kept, else ""."""
    from .kept import remember

    return remember(_KIND, _machine(), str(path.absolute()))


def _machine() -> str:
    """Return a key of this machine and of the devices that are seen of it."""
    from .kept import hash_of

    return hash_of(platform.node(), *(f"{gpu.name} {gpu.memory_bytes}" for gpu in _gpus()))


def _drives_gpus() -> bool:
    return any(path.exists() for path in _DRIVERS)


def _gpus() -> "Sequence[Gpu]":
    """Return the cards that torch sees, which is not asked where no driver is loaded."""
    if not _drives_gpus():
        return ()
    from meshwright.runtime.launch.machine import read_gpus

    return read_gpus()


def named(gpus: Sequence["Gpu"], given: Cluster) -> Cluster:
    """Return the cluster of cards: the part that their name holds, with their memory where it is
    another than the part's; without a card that of CPU ranks."""
    from meshwright.planner.hardware.catalogue import CATALOGUE
    from meshwright.planner.units import gib

    if not gpus:
        return Cluster(WITHOUT_GPUS, given.gpu_memory, given.host_memory)
    if len(names := {gpu.name for gpu in gpus}) > 1:
        raise ValueError(
            f"--cluster {AUTO}: the {len(gpus)} GPUs here differ ({', '.join(sorted(names))}); set "
            " CUDA_VISIBLE_DEVICES to like ones, or name a cluster"
        )
    card = gpus[0]
    plain = card.name.replace(" ", "").lower()
    part = next((part for name, part in CATALOGUE.items() if name in plain), None)
    if part is None:
        known = ", ".join(name for name in CATALOGUE if name != "cpu")
        raise ValueError(
            f"--cluster {AUTO}: {card.name} of {gib(card.memory_bytes)} is like no part of the "
            f"catalogue ({known}); describe it by `meshwright clusters new FILE`"
        )
    listed = part.device.memory_bytes
    same = abs(card.memory_bytes - listed) <= _MEMORY_TOLERANCE * listed
    memory = given.gpu_memory or ("" if same else f"{card.memory_bytes / 2**30:.1f}GiB")
    return Cluster(f"{part.name}:{len(gpus)}", memory, given.host_memory)
