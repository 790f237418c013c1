"""Placements: how a value lies on named mesh axes.

Note. A mesh *axis* splits devices; a tensor *dim* is split over axes. A shard splits a *factor*
of a dim: a dim of size outer * n * inner, split over n, is strided (the thirds of a fused qkv, the
sequence factor of a flattened B*S). `outer` is 1 for the ordinary contiguous shard.

Text: `[{dp}, {}, {tp}]` per dim, axes major to minor; a strided shard writes its outer size,
`[{3:tp}]`; a value still to be reduced adds `partial {tp:sum}`.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from .errors import ParseError
from .mesh import Mesh
from .sizes import Shape, Size, format_size, parse_size


@dataclass(frozen=True, slots=True)
class Shard:
    """One axis splitting the factor of a dim that lies inside `outer` (1: contiguous)."""

    axis: str
    outer: Size = 1


@dataclass(frozen=True, slots=True)
class Placement:
    """Per dim the shards on it, major to minor; `partial` lists (axis, "sum"|"max"|"lse")."""

    dims: tuple[tuple[Shard, ...], ...]
    partial: tuple[tuple[str, str], ...] = ()

    def shard_dim(self, axis: str) -> int | None:
        for index, shards in enumerate(self.dims):
            if any(s.axis == axis for s in shards):
                return index
        return None

    def shard(self, axis: str) -> Shard | None:
        for shards in self.dims:
            for shard in shards:
                if shard.axis == axis:
                    return shard
        return None

    def partial_op(self, axis: str) -> str | None:
        return dict(self.partial).get(axis)

    def is_replicated(self, axis: str) -> bool:
        return self.shard_dim(axis) is None and self.partial_op(axis) is None


def replicated(rank: int) -> Placement:
    return Placement(((),) * rank)


def with_partial(placement: Placement, axis: str, op: str) -> Placement:
    return Placement(placement.dims, (*placement.partial, (axis, op)))


def only_axis(placement: Placement, axis: str) -> Placement:
    dims = tuple(tuple(s for s in shards if s.axis == axis) for shards in placement.dims)
    return Placement(dims, tuple(p for p in placement.partial if p[0] == axis))


def local_shape(shape: Shape, placement: Placement, mesh: Mesh) -> Shape:
    """The shape one rank holds; symbolic where the logical shape is."""
    local = []
    for size, shards in zip(shape, placement.dims, strict=True):
        for shard in shards:
            size = (
                size // mesh.size(shard.axis)
                if isinstance(size, int)
                else size / mesh.size(shard.axis)
            )
        local.append(size)
    return tuple(local)


@lru_cache(maxsize=65536)
def format_placement(placement: Placement) -> str:
    text = "[" + ", ".join("{" + " ".join(map(_format_shard, s)) + "}" for s in placement.dims)
    text += "]"
    if placement.partial:
        text += " partial {" + " ".join(f"{a}:{op}" for a, op in placement.partial) + "}"
    return text


def _format_shard(shard: Shard) -> str:
    return shard.axis if shard.outer == 1 else f"{format_size(shard.outer)}:{shard.axis}"


def parse_placement(text: str) -> Placement:
    match = re.match(r"\[(?P<dims>.*?)\](?: partial \{(?P<partial>[^}]*)\})?$", text)
    if match is None:
        raise ParseError(f"not a placement: {text!r}; expected e.g. [{{dp}}, {{}}, {{tp}}]")
    dims = tuple(
        tuple(_parse_shard(s) for s in group.split())
        for group in re.findall(r"\{([^}]*)\}", match["dims"])
    )
    partial = tuple(tuple(p.split(":")) for p in (match["partial"] or "").split())
    return Placement(dims, partial)


def _parse_shard(text: str) -> Shard:
    outer, _, axis = text.rpartition(":")
    return Shard(axis, parse_size(outer) if outer else 1)
