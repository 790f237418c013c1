"""Redistributions: the collectives that bring a value from one placement to another.

A move changes how one axis places a value. From one placement to another every axis that differs
moves once, in the order that costs least; an axis whose move has no collective of its own, or whose
shard another axis's move stands in the way of, passes through whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

from meshwright.ir.mesh import TENSOR, Mesh
from meshwright.ir.placement import (
    Placement,
    Shard,
    component,
    merge,
    only_axis,
    replicated,
    without_halo,
)
from meshwright.ir.sizes import simplify_size


@dataclass(frozen=True)
class Move:
    """One collective along an axis, or along the parts of a split one together. kind: all_reduce,
    all_gather, reduce_scatter, all_to_all, or slice, which takes a rank's part of what it has; halo
    and reduce_halo, which take elements of the rank before and give it its shares of them."""

    axes: tuple[str, ...]
    kind: str
    src: Placement
    dst: Placement


MovePath = tuple[Move, ...]

# Of a neighbour's elements: a copy taken, and shares given back.
HALO_KINDS = ("halo", "reduce_halo")

# How axes place a value where no single collective along all of them sees it.
APART = "apart"


def joint_component(
    placement: Placement, axes: tuple[str, ...], mesh: Mesh
) -> tuple[int, Shard] | str | None:
    """Return how axes together place a value, as `component` does; APART where they differ.

    Shards of one dim that lie right inside each other are one shard, cut by all of the axes.
    """
    first, *others = (component(placement, axis) for axis in axes)
    if all(found == first for found in others):
        return first
    cuts = 1
    for axis, found in zip(axes, others, strict=False):
        cuts *= mesh.size(axis)
        if isinstance(first, str) or isinstance(found, str) or None in (first, found):
            return APART
        assert first is not None and found is not None
        (dim, shard), (other_dim, other) = first, found
        if dim != other_dim or other.outer != simplify_size(shard.outer * cuts):
            return APART
    return first


def move_kind(src: Placement, dst: Placement, axes: tuple[str, ...], mesh: Mesh) -> str | None:
    """The collective from `src` to `dst` along axes; "" when equal, None when there is none.

    Two moves have none of their own and pass through whole, named by their first collective's end
    in a slice: a partial max or log-sum-exp reaches a shard by an all_reduce, a shard another one
    of the same dim (other factors) by an all_gather, for the ranks' parts of it are no equal chunks
    that an all_to_all could exchange. Moves from and to a halo, which names them, pass through the
    shard without it; no copy with a halo is made where another one starts.
    """
    before, after = (joint_component(placed, axes, mesh) for placed in (src, dst))
    if before == after:
        return ""
    given, wanted = (c[1] if isinstance(c, tuple) else None for c in (before, after))
    if isinstance(after, str) or (wanted and wanted.summed):
        return None
    if given and given.halo:
        return "reduce_halo" if given.summed else None
    if wanted and wanted.halo:
        return "halo"
    if isinstance(before, str):
        return "reduce_scatter" if before == "sum" and after is not None else "all_reduce"
    if before is None:
        return "slice"
    other_dim = after is not None and after[0] != before[0]
    return "all_to_all" if other_dim else "all_gather"


def move_paths(src: Placement, dst: Placement, mesh: Mesh) -> Iterator[MovePath]:
    """Ways from one placement to another, each axis that differs moved in some order; none where a
    value would have to become partial."""
    units = moved_units(src, dst, mesh)
    if any(move_kind(src, dst, axes, mesh) is None for axes in units):
        return
    for order in permutations(units):
        yield from _walk(src, dst, order, mesh)
    for axes in units if len(units) > 1 else ():  # one axis out of the others' way first
        rest = [other for other in units if other != axes]
        for order in permutations(rest):
            yield from _walk(src, dst, (axes, *order, axes), mesh, whole_first=True)


def moved_units(src: Placement, dst: Placement, mesh: Mesh) -> list[tuple[str, ...]]:
    """The axes whose placement differs; the parts of a split axis as one where they move alike."""
    tensor = mesh.names(TENSOR)
    apart = any(joint_component(placed, tensor, mesh) == APART for placed in (src, dst) if tensor)
    units: list[tuple[str, ...]] = [(a,) for a, _ in mesh.axes if apart or a not in tensor]
    units += [tensor] if tensor and not apart else []
    return [u for u in units if any(component(src, a) != component(dst, a) for a in u)]


def _walk(
    src: Placement,
    dst: Placement,
    order: tuple[tuple[str, ...], ...],
    mesh: Mesh,
    whole_first: bool = False,
) -> Iterator[MovePath]:
    """The moves of axes in an order, if every placement on the way exists."""
    moves: list[Move] = []
    at = src
    for index, axes in enumerate(order):
        to_whole = whole_first and index == 0
        target = _with(at, None if to_whole else dst, axes, mesh)
        if target is None:
            return
        for stop in _stops(at, target, axes, mesh):
            if stop is None:
                return
            if kind := move_kind(at, stop, axes, mesh):
                moves.append(Move(axes, kind, at, stop))
            at = stop
    yield tuple(moves)


def _stops(
    at: Placement, target: Placement, axes: tuple[str, ...], mesh: Mesh
) -> Iterator[Placement | None]:
    """The placements on the way to `target`, which comes last; None where shards would cross."""
    kind = move_kind(at, target, axes, mesh)
    if kind == "reduce_halo":
        bare = without_halo(at, axes[0])
        yield bare
        yield from _stops(bare, target, axes, mesh)
        return
    if kind == "halo":
        yield from _stops(at, without_halo(target, axes[0]), axes, mesh)
    elif kind in ("all_reduce", "all_gather") and joint_component(target, axes, mesh) is not None:
        yield _with(at, None, axes, mesh)
    yield target


def _with(
    at: Placement, dst: Placement | None, axes: tuple[str, ...], mesh: Mesh
) -> Placement | None:
    """`at` with some axes placed as in `dst` (None: whole); None where shards would cross, lie
    inside a mirrored one that moves, or beside one with a halo."""
    rest = [only_axis(at, a) for a, _ in mesh.axes if a not in axes]
    new = replicated(len(at.dims)) if dst is None else only_axis(dst, *axes)
    made = merge([*rest, new], dict(mesh.axes))
    return None if made is None or _tangled(at, axes) or _tangled(made, axes) else made


def _tangled(placement: Placement, axes: tuple[str, ...]) -> bool:
    """Whether a shard that stands alone, or holds no other, has one in its dim."""
    return any(
        any(s.halo for s in shards) or any(s.mirrored and s.axis in axes for s in shards[:-1])
        for shards in placement.dims
        if len(shards) > 1
    )


def held_copy(src: Placement, dst: Placement, mesh: Mesh) -> Placement:
    """The copy that stays resident for backward to read a value made in `src` as `dst`.

    The one it reads, but a slice is taken from the whole when backward comes.
    """
    kinds = {move_kind(src, dst, axes, mesh) for axes in moved_units(src, dst, mesh)}
    return src if kinds == {"slice"} else dst
