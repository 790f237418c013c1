"""The mesh at run time: this rank's coordinates, and process groups along axes and roles.

Emitted programs read it as module state (`mesh.coordinate("tp")`, `mesh.group("tp")`), set once by
`start` before a stage file is imported. The rest of the runtime asks for roles, as in ir/mesh.py.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

# The roles of axes, and what they do; a test holds all of it equal to ir/mesh.py.
ROLES = {
    "pp": "pipeline", "rep": "replica", "dp": "data", "cp": "context", "ep": "expert",
    "tp": "tensor", "tq": "tensor",
}  # fmt: skip
PIPELINE, REPLICA = ("pipeline",), ("replica",)
CONTEXT, TENSOR = ("context",), ("tensor",)
BATCH = ("replica", "data")
STORAGE = ("data", "context")
REDUCED = ("replica", "data", "context")
COMPUTE = ("context", "tensor")


class MeshError(ValueError):
    """The launched world does not match the program."""


@dataclass
class _State:
    sizes: dict[str, int] = field(default_factory=dict)
    coordinates: dict[str, int] = field(default_factory=dict)
    groups: dict[tuple[str, ...], dist.ProcessGroup | None] = field(default_factory=dict)
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
    _state.groups = {}
    joint = (names(*roles) for roles in (PIPELINE, REPLICA, STORAGE, REDUCED, COMPUTE, TENSOR))
    for axes in dict.fromkeys((*((axis,) for axis in sizes), *joint)):
        _state.groups[axes] = _group_along(axes, rank)


def check_world(sizes: dict[str, int], world: int) -> None:
    """Raise MeshError when `world` is not the product of the axis sizes."""
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


def _group_along(axes: tuple[str, ...], rank: int) -> dist.ProcessGroup | None:
    """This rank's group along axes together; every rank makes every group, in the same order."""
    if math.prod(_state.sizes[axis] for axis in axes) == 1:
        return None
    return _group_of(lambda c: tuple(v for n, v in c.items() if n not in axes), rank)


def _group_of(key, rank: int) -> dist.ProcessGroup | None:  # type: ignore[no-untyped-def]
    members: dict[tuple, list[int]] = {}
    for other in range(math.prod(_state.sizes.values())):
        members.setdefault(key(coordinates_of(other, _state.sizes)), []).append(other)
    mine = None
    for ranks in members.values():
        made = dist.new_group(ranks, timeout=_state.timeout)
        mine = made if rank in ranks else mine
    return mine


def another_group(*roles: str) -> dist.ProcessGroup | None:
    """A second communicator along roles, so that two directions never wait for each other."""
    return _group_along(names(*roles), dist.get_rank()) if count(*roles) > 1 else None


def homes_group(homes: tuple[int, ...]) -> dist.ProcessGroup | None:
    """The group of this rank's column restricted to some stages' ranks (homes of a tied
    parameter)."""
    if len(homes) < 2:
        return None
    mine = None
    (pipeline,) = names(*PIPELINE)
    others = [name for name in _state.sizes if name != pipeline]
    for values in itertools.product(*(range(_state.sizes[name]) for name in others)):
        column = dict(zip(others, values, strict=True))
        ranks = [rank_of({pipeline: home, **column}) for home in homes]
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


def names(*roles: str) -> tuple[str, ...]:
    """Names of the axes of the roles, major to minor."""
    return tuple(name for name in _state.sizes if ROLES[name] in roles)


def count(*roles: str) -> int:
    """Ranks along all axes of the roles together."""
    return math.prod(_state.sizes[name] for name in names(*roles))


def index(*roles: str) -> int:
    """Return this rank's place along all axes of the roles together, row-major."""
    place = 0
    for name in names(*roles):
        place = place * _state.sizes[name] + coordinate(name)
    return place


def places(*roles: str) -> list[dict[str, int]]:
    """Return coordinates by axis of every place along the roles, in the order of `index`."""
    sizes = {name: _state.sizes[name] for name in names(*roles)}
    return [coordinates_of(n, sizes) for n in range(count(*roles))]


def owns(over: Iterable[str]) -> bool:
    """Tell whether this rank counts, or stores, what differs along the axes `over` only.

    What is equal along an axis belongs to its first rank.
    """
    return all(at == 0 for name, at in _state.coordinates.items() if name not in over)


def world() -> int:
    """Ranks of the run."""
    return math.prod(_state.sizes.values())


def group(*axes: str) -> dist.ProcessGroup | None:
    """The group along one axis, or along those of roles together; None for one rank."""
    return _state.groups.get(axes)


def group_of(*roles: str) -> dist.ProcessGroup | None:
    """The group along all axes of the roles together; None for one rank."""
    return _state.groups.get(names(*roles))


def device() -> torch.device:
    return _state.device


def synchronize() -> None:
    """Wait until all that was given to this rank's device is done."""
    if device().type == "cuda":
        torch.cuda.synchronize(device())
