"""Placements: how a value lies on named mesh axes.

Note. A mesh *axis* splits devices; a tensor *dim* is split over axes. A shard splits a *factor*
of a dim: a dim of size outer * n * inner, split over n, is strided (the thirds of a fused qkv, the
sequence factor of a flattened B*S). `outer` is 1 for the ordinary contiguous shard.

Several axes may cut one dim: each shard lies inside the shards of smaller `outer`. `outer` counts
logical elements, so the order of shards in a dim follows from the shards alone. A collective along
one axis sees a local tensor, which the other axes have cut already: `local_outer`.

A mirrored shard balances causal work: of 2n equal chunks rank r of n holds chunk r and chunk
2n - 1 - r. What lies inside it cuts the two chunks put together.

A shard with a halo holds the last elements of the rank before as well, the first rank none. As a
copy it is read (the keys of a window); as shares, still to be added to the neighbour's, it is made
(their gradients). No other axis cuts its dim.

Text: `[{dp}, {}, {tp}]` per dim, axes major to minor; a strided shard writes its outer size,
`[{3:tp}]`, a mirrored one `[{tp~}]`, one with a halo of 4 `[{tp+4}]`, of shares `[{tp+4sum}]`; a
value still to be reduced adds `partial {tp:sum}`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise

import sympy

from .errors import ParseError
from .mesh import Mesh
from .sizes import B, S, Shape, Size, format_size, parse_size, simplify_size


@dataclass(frozen=True, slots=True)
class Shard:
    """One axis splitting the factor of a dim that lies inside `outer` (1: contiguous).

    mirrored: a rank holds a chunk and its mirror image, else one chunk. halo: elements of the rank
    before that a rank holds too. summed: what ranks hold of them is still to be added.
    """

    axis: str
    outer: Size = 1
    mirrored: bool = False
    halo: int = 0
    summed: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """The shards on every dim, major to minor; `partial` lists (axis, "sum"|"max"|"lse")."""

    dims: tuple[tuple[Shard, ...], ...]
    partial: tuple[tuple[str, str], ...] = ()
    # Kept, for the tables of the sharding search look placements up a million times; 0: not yet.
    _hash: int = field(default=0, init=False, compare=False, repr=False)

    def __hash__(self) -> int:
        if not self._hash:
            object.__setattr__(self, "_hash", hash((self.dims, self.partial)) or 1)
        return self._hash

    def __reduce__(self) -> tuple:
        return Placement, (self.dims, self.partial)  # hashes of text differ between processes

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
    """The placement, still to be reduced along one more axis."""
    return Placement(placement.dims, tuple(sorted((*placement.partial, (axis, op)))))


def without_halo(placement: Placement, axis: str) -> Placement:
    """The placement, the axis's shard without a halo."""

    def bare(shard: Shard) -> Shard:
        return replace(shard, halo=0, summed=False) if shard.axis == axis else shard

    return replace(placement, dims=tuple(tuple(map(bare, shards)) for shards in placement.dims))


def only_axis(placement: Placement, *axes: str) -> Placement:
    """Return how some axes place a value."""
    dims = tuple(tuple(s for s in shards if s.axis in axes) for shards in placement.dims)
    return Placement(dims, tuple(p for p in placement.partial if p[0] in axes))


def component(placement: Placement, axis: str) -> tuple[int, Shard] | str | None:
    """Return how one axis places a value: (dim, shard), the op of a partial one, None for whole."""
    for dim, shards in enumerate(placement.dims):
        for shard in shards:
            if shard.axis == axis:
                return dim, shard
    return placement.partial_op(axis)


def merge(placements: Sequence[Placement], sizes: Mapping[str, int]) -> Placement | None:
    """One placement of several, each of axes of its own; None where two cut across each other.

    sizes: ranks by axis. Shards of one dim nest: the smaller outer is the more major.
    """
    dims = []
    for shards in zip(*(p.dims for p in placements), strict=True):
        nested = _nested([s for found in shards for s in found], sizes)
        if nested is None:
            return None
        dims.append(nested)
    partial = tuple(p for placement in placements for p in placement.partial)
    return Placement(tuple(dims), tuple(sorted(partial)))


def _nested(shards: list[Shard], sizes: Mapping[str, int]) -> tuple[Shard, ...] | None:
    """Shards of one dim, major to minor; None where one does not lie inside the one before."""
    if len(shards) < 2:
        return tuple(shards)
    ordered = sorted(shards, key=lambda s: (_magnitude(s.outer), s.axis))
    for major, minor in pairwise(ordered):
        inside = simplify_size(sympy.sympify(minor.outer) / (major.outer * sizes[major.axis]))
        if not isinstance(inside, int):
            return None
    return tuple(ordered)


def _magnitude(size: Size) -> float:
    """Orders sizes that divide each other: B and S stand for large numbers."""
    return float(size if isinstance(size, int) else size.subs({B: 2.0**20, S: 2.0**21}))


def local_outer(placement: Placement, axis: str, mesh: Mesh) -> Size:
    """The outer size of an axis's shard in a tensor that the other axes have cut."""
    for shards in placement.dims:
        before = 1
        for shard in shards:
            if shard.axis == axis:
                if before == 1:
                    return shard.outer
                return simplify_size(shard.outer * sympy.Rational(1, before))
            before *= mesh.size(shard.axis)
    raise KeyError(f"{format_placement(placement)} has no shard on {axis}")


def local_shape(shape: Shape, placement: Placement, mesh: Mesh) -> Shape:
    """The shape one rank holds, of several the largest; symbolic where the logical shape is."""
    local = []
    for size, shards in zip(shape, placement.dims, strict=True):
        for shard in shards:
            size = (
                size // mesh.size(shard.axis)
                if isinstance(size, int)
                else size / mesh.size(shard.axis)
            ) + shard.halo
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
    outer = "" if shard.outer == 1 else f"{format_size(shard.outer)}:"
    halo = f"+{shard.halo}{'sum' if shard.summed else ''}" if shard.halo else ""
    return f"{outer}{shard.axis}{'~' if shard.mirrored else ''}{halo}"


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
    match = re.fullmatch(r"(?:(.+):)?(\w+)(~?)(?:\+([1-9]\d*)(sum)?)?", text)
    if match is None:
        raise ParseError(f"not a shard: {text!r}; expected e.g. tp, 3:tp, tp~ or tp+4")
    outer, axis, mirrored, halo, summed = match.groups()
    size = parse_size(outer) if outer else 1
    return Shard(axis, size, bool(mirrored), int(halo or 0), bool(summed))
