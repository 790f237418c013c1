"""Redistributions: the collectives that bring a value from one placement to another.

A move changes how one axis places a value. From one placement to another every axis that differs
moves once, in the order that costs least; an axis whose move has no collective of its own, or whose
shard another axis's move stands in the way of, passes through whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

from meshwright.ir.mesh import Mesh
from meshwright.ir.placement import Placement, component, merge, only_axis, replicated


@dataclass(frozen=True)
class Move:
    """One collective along one axis. kind: all_reduce, all_gather, reduce_scatter, all_to_all, or
    slice, which takes a rank's part of what it has."""

    axis: str
    kind: str
    src: Placement
    dst: Placement


Path = tuple[Move, ...]


def move_kind(src: Placement, dst: Placement, axis: str) -> str | None:
    """The collective from `src` to `dst` along an axis; "" when equal, None when there is none.

    Two moves have none of their own and pass through whole, named by their first collective's end
    in a slice: a partial max or log-sum-exp reaches a shard by an all_reduce, a shard another one
    of the same dim (other factors) by an all_gather, for the ranks' parts of it are no equal chunks
    that an all_to_all could exchange.
    """
    before, after = component(src, axis), component(dst, axis)
    if before == after:
        return ""
    if isinstance(after, str):
        return None
    if isinstance(before, str):
        return "reduce_scatter" if before == "sum" and after is not None else "all_reduce"
    if before is None:
        return "slice"
    other_dim = after is not None and after[0] != before[0]
    return "all_to_all" if other_dim else "all_gather"


def paths(src: Placement, dst: Placement, mesh: Mesh) -> Iterator[Path]:
    """Ways from one placement to another, each axis that differs moved in some order; none where a
    value would have to become partial."""
    axes = [a for a, _ in mesh.axes if component(src, a) != component(dst, a)]
    if any(move_kind(src, dst, axis) is None for axis in axes):
        return
    for order in permutations(axes):
        yield from _walk(src, dst, order, mesh)
    for axis in axes if len(axes) > 1 else ():  # one axis out of the others' way first
        rest = [a for a in axes if a != axis]
        for order in permutations(rest):
            yield from _walk(src, dst, (axis, *order, axis), mesh, whole_first=True)


def _walk(
    src: Placement, dst: Placement, order: tuple[str, ...], mesh: Mesh, whole_first: bool = False
) -> Iterator[Path]:
    """The moves of axes in an order, if every placement on the way exists."""
    moves: list[Move] = []
    at = src
    for index, axis in enumerate(order):
        to_whole = whole_first and index == 0
        target = _with(at, None if to_whole else dst, axis, mesh)
        if target is None:
            return
        kind = move_kind(at, target, axis)
        if kind in ("all_reduce", "all_gather") and component(target, axis) is not None:
            whole = _with(at, None, axis, mesh)
            if whole is None:
                return
            moves.append(Move(axis, kind, at, whole))
            at, kind = whole, "slice"
        if kind:
            moves.append(Move(axis, kind, at, target))
        at = target
    yield tuple(moves)


def _with(at: Placement, dst: Placement | None, axis: str, mesh: Mesh) -> Placement | None:
    """`at` with one axis placed as in `dst` (None: whole); None where shards would cross."""
    rest = [only_axis(at, a) for a, _ in mesh.axes if a != axis]
    new = replicated(len(at.dims)) if dst is None else only_axis(dst, axis)
    return merge([*rest, new], dict(mesh.axes))


def held_copy(src: Placement, dst: Placement, mesh: Mesh) -> Placement:
    """The copy that stays resident for backward to read a value made in `src` as `dst`.

    The one it reads, but a slice is taken from the whole when backward comes.
    """
    kinds = {move_kind(src, dst, axis) for axis, _ in mesh.axes} - {""}
    return src if kinds == {"slice"} else dst
