"""The mesh at run time: this rank's coordinates and one process group per axis.

Emitted programs read it as module state (`mesh.coordinate("tp")`, `mesh.group("tp")`), set once by
`start` before a stage file is imported.
"""

import itertools
import math
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist


class MeshError(ValueError):
    """The launched world does not match the program."""


@dataclass
class _State:
    sizes: dict[str, int] = field(default_factory=dict)
    coordinates: dict[str, int] = field(default_factory=dict)
    groups: dict[str, dist.ProcessGroup | None] = field(default_factory=dict)
    device: torch.device = torch.device("cpu")
    timeout: timedelta | None = None


_state = _State()


def start(sizes: dict[str, int], device: torch.device, timeout: timedelta | None = None) -> None:
    """Build groups for the axes (major to minor) over an initialised process group.

    timeout: of their collectives, torch's own if not given.
    Raises MeshError when the world size is not the product of the axis sizes.
    """
    check_world(sizes, dist.get_world_size() if dist.is_initialized() else 1)
    rank = dist.get_rank() if dist.is_initialized() else 0
    _state.sizes, _state.device, _state.timeout = dict(sizes), device, timeout
    _state.coordinates = coordinates_of(rank, sizes)
    _state.groups = {axis: _axis_group(axis, rank) for axis in sizes}


def check_world(sizes: dict[str, int], world: int) -> None:
    """Raises MeshError when `world` is not the product of the axis sizes."""
    needed = math.prod(sizes.values())
    if world != needed:
        axes = " ".join(f"{name}={size}" for name, size in sizes.items())
        raise MeshError(
            f"the program is planned for {needed} ranks ({axes}), {world} were launched; "
            f"launch with torchrun --nproc-per-node {needed}, or plan for {world}"
        )


def coordinates_of(rank: int, sizes: dict[str, int]) -> dict[str, int]:
    found = {}
    for name, size in reversed(sizes.items()):
        found[name] = rank % size
        rank //= size
    return found


def rank_of(coordinates: dict[str, int]) -> int:
    rank = 0
    for name, size in _state.sizes.items():
        rank = rank * size + coordinates[name]
    return rank


def _axis_group(axis: str, rank: int) -> dist.ProcessGroup | None:
    """This rank's group along an axis; every rank makes every group, in the same order."""
    if _state.sizes[axis] == 1:
        return None
    return _group_of(lambda c: tuple(v for n, v in c.items() if n != axis), rank)


def _group_of(key, rank: int) -> dist.ProcessGroup | None:  # type: ignore[no-untyped-def]
    members: dict[tuple, list[int]] = {}
    for other in range(math.prod(_state.sizes.values())):
        members.setdefault(key(coordinates_of(other, _state.sizes)), []).append(other)
    mine = None
    for ranks in members.values():
        made = dist.new_group(ranks, timeout=_state.timeout)
        mine = made if rank in ranks else mine
    return mine


def axis_group_again(axis: str) -> dist.ProcessGroup | None:
    """A second communicator along an axis, so that two directions never wait for each other."""
    return _axis_group(axis, dist.get_rank()) if _state.sizes[axis] > 1 else None


def homes_group(homes: tuple[int, ...]) -> dist.ProcessGroup | None:
    """The group of this rank's column restricted to some pp ranks (homes of a tied parameter)."""
    if len(homes) < 2:
        return None
    mine = None
    others = [range(size) for name, size in _state.sizes.items() if name != "pp"]
    names = [name for name in _state.sizes if name != "pp"]
    for values in itertools.product(*others):
        column = dict(zip(names, values, strict=True))
        ranks = [rank_of({"pp": home, **column}) for home in homes]
        made = dist.new_group(ranks, timeout=_state.timeout)
        mine = made if dist.get_rank() in ranks else mine
    return mine


def axes() -> tuple[str, ...]:
    """Names of the axes, major to minor."""
    return tuple(_state.sizes)


def coordinate(axis: str) -> int:
    return _state.coordinates.get(axis, 0)


def size(axis: str) -> int:
    return _state.sizes.get(axis, 1)


def world() -> int:
    """Ranks of the run."""
    return math.prod(_state.sizes.values())


def group(axis: str) -> dist.ProcessGroup | None:
    return _state.groups.get(axis)


def device() -> torch.device:
    return _state.device
