"""Meshes: ordered named axes, each with a role. Rooms ask for roles; only this file names axes.

    pp   pipeline  cuts the model into stages
    rep  replica   cuts the batch; outer copies of sharded storage (hybrid sharding, HSDP)
    dp   data      cuts the batch; storage of dense parameters is sharded over data x context
    cp   context   cuts the sequence
    ep   expert    cuts the batch for dense values and the expert dim for experts
    tp   tensor    cuts features, heads and vocabulary
    tq   tensor    the inner part of a tensor axis that has more ranks than there are KV heads

Note. A mesh *axis* splits devices; a tensor *dim* is split over axes (placement.py). Axes are
ordered major to minor: neighbours of the last axis are adjacent ranks.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import ParseError

PIPELINE, REPLICA, DATA = "pipeline", "replica", "data"
CONTEXT, EXPERT, TENSOR = "context", "expert", "tensor"
ROLES = {
    "pp": PIPELINE, "rep": REPLICA, "dp": DATA, "cp": CONTEXT, "ep": EXPERT, "tp": TENSOR,
    "tq": TENSOR,
}  # fmt: skip
# Of each role its first axis.
AXIS_OF = {role: name for name, role in reversed(ROLES.items())}
# Axes that stand in every mesh, also where they have one rank.
ALWAYS = (PIPELINE, DATA, TENSOR)

# Roles that cut the rows of the global batch; over which ZeRO shards what it stores; over which
# gradients of dense parameters are summed; whose placements the sharding ILP chooses.
BATCH = (REPLICA, DATA)
STORAGE = (DATA, CONTEXT)
REDUCED = (REPLICA, DATA, CONTEXT)
COMPUTE = (CONTEXT, TENSOR)


@dataclass(frozen=True, slots=True)
class Mesh:
    """Named axes with sizes, major to minor; rank = row-major index of its coordinates."""

    axes: tuple[tuple[str, int], ...]

    def size(self, axis: str) -> int:
        """Ranks along an axis; 1 for one that the mesh lacks."""
        return dict(self.axes).get(axis, 1)

    def count(self, *roles: str) -> int:
        """Ranks along all axes of the roles together."""
        total = 1
        for name, size in self.axes:
            total *= size if ROLES[name] in roles else 1
        return total

    def names(self, *roles: str) -> tuple[str, ...]:
        """Names of the axes of the roles, major to minor."""
        return tuple(name for name, _ in self.axes if ROLES[name] in roles)

    def only(self, *roles: str) -> "Mesh":
        """The axes of the roles alone."""
        return Mesh(tuple(axis for axis in self.axes if ROLES[axis[0]] in roles))

    @property
    def compute(self) -> "Mesh":
        """The axes of several ranks that the sharding ILP places values on."""
        return Mesh(tuple((n, size) for n, size in self.axes if size > 1 and ROLES[n] in COMPUTE))

    @property
    def num_devices(self) -> int:
        total = 1
        for _, size in self.axes:
            total *= size
        return total

    def stride(self, axis: str) -> int:
        """Ranks between neighbours of an axis."""
        names, total = [name for name, _ in self.axes], 1
        for name in names[names.index(axis) + 1 :]:
            total *= self.size(name)
        return total

    def coordinates(self, rank: int) -> dict[str, int]:
        found = {}
        for name, size in reversed(self.axes):
            found[name] = rank % size
            rank //= size
        return {name: found[name] for name, _ in self.axes}

    def __str__(self) -> str:
        return " ".join(f"{name}={size}" for name, size in self.axes)


def make_mesh(sizes: Mapping[str, int], outermost: str = PIPELINE, inner: int = 1) -> Mesh:
    """The mesh of sizes by role, in canonical order, `outermost` moved to the front.

    inner: ranks of the tensor axis's inner part. Axes of one rank are left out, except for the
    roles in ALWAYS.
    """
    ranks = {name: sizes.get(role, 1) for role, name in AXIS_OF.items()}
    outer, split = (name for name, role in ROLES.items() if role == TENSOR)
    ranks |= {outer: ranks[outer] // inner, split: inner}
    kept = [n for n in ROLES if ranks[n] > 1 or n in map(AXIS_OF.get, ALWAYS)]
    return reordered(Mesh(tuple((name, ranks[name]) for name in kept)), outermost)


def reordered(mesh: Mesh, outermost: str) -> Mesh:
    """The mesh with pipeline or data outermost; replicas of data lie outside it."""
    names = list(ROLES)
    if outermost == DATA:
        names.sort(key=lambda name: ROLES[name] not in BATCH)
    return Mesh(tuple(sorted(mesh.axes, key=lambda axis: names.index(axis[0]))))


def compute_mesh(tensor: int = 1, context: int = 1, inner: int = 1) -> Mesh:
    """A mesh of the axes alone that the sharding ILP places values on; `inner` as in make_mesh."""
    return make_mesh({TENSOR: tensor, CONTEXT: context}, inner=inner).compute


def parse_mesh(text: str) -> Mesh:
    """Inverse of str(Mesh). Raises ParseError for an unknown axis or a size below 1."""
    axes = []
    for part in text.split():
        name, _, size = part.partition("=")
        if not size.isdigit() or int(size) < 1:
            raise ParseError(f"mesh axis {part!r}: expected name=size with size >= 1")
        if name not in ROLES:
            raise ParseError(f"mesh axis {part!r}: axes are {', '.join(ROLES)}")
        axes.append((name, int(size)))
    return Mesh(tuple(axes))
