"""The cluster at hand: what `--cluster auto` stands for on this machine."""

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
# Where drivers show that they are loaded; torch, which counts cards, takes seconds to import.
_DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/dev/kfd"))


def at_hand(given: Cluster, say: Say) -> Cluster:
    """Return the cluster, `auto` replaced by this machine's devices, which is said.

    Raises ValueError for cards that differ, or are like no part of the catalogue.
    """
    if given.name != AUTO:
        return given
    if not any(path.exists() for path in _DRIVERS):
        say(f"no GPU driver is loaded here: planning for {WITHOUT_GPUS}; --cluster names others")
        return Cluster(WITHOUT_GPUS, given.gpu_memory, given.host_memory)
    from meshwright.runtime.launch.machine import read_gpus

    found = named(read_gpus(), given)
    say(f"planning for this machine: {found.spec}")
    return found


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
