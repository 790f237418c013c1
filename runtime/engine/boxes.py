"""Geometry of checkpoints: which logical boxes a range of a flat bucket holds.

Note. A rank's shard cuts parameters at any element, so it holds a flat range of a parameter's local
tensor; a tp cut maps local indices to logical ones. A *box* is (offsets, sizes) in the logical
tensor; any plan's shard is a list of boxes, and any two plans' boxes can be intersected.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

Index = tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """offsets and sizes per dim of the logical tensor."""

    offsets: Index
    sizes: Index

    @property
    def numel(self) -> int:
        return math.prod(self.sizes)

    def slices_of(self, whole: "Box") -> tuple[slice, ...]:
        """Return this box's slices in a tensor that holds `whole`."""
        starts = [a - b for a, b in zip(self.offsets, whole.offsets, strict=True)]
        return tuple(slice(a, a + n) for a, n in zip(starts, self.sizes, strict=True))


@dataclass(frozen=True)
class Cut:
    """A dim of size outer * n * m, of which a rank holds part `index` of n.

    Of several on one dim, each cuts what those before it left.
    """

    dim: int
    outer: int
    index: int
    n: int


@dataclass(frozen=True)
class Piece:
    """A logical box and where it lies in a local flat range.

    local: sizes of the contiguous rectangle that starts at element `start` of the range; slices
    select the box in it.
    """

    box: Box
    start: int
    local: Index
    slices: tuple[slice, ...]


def pieces_of(shape: Index, cuts: tuple[Cut, ...], first: int, last: int) -> Iterator[Piece]:
    """Boxes of elements first..last of a parameter's local tensor of `shape`, flat."""
    for offsets, sizes, start in rectangles(shape, first, last):
        yield from _logical(Box(offsets, sizes), start - first, cuts, shape)


def rectangles(shape: Index, first: int, last: int) -> Iterator[tuple[Index, Index, int]]:
    """(offsets, sizes, first element) of the fewest contiguous rectangles of a flat range."""
    if first >= last:
        return
    if not shape:
        yield (), (), first
        return
    row = math.prod(shape[1:])
    top, bottom = -(-first // row), last // row
    if top > bottom:  # the range lies within one row
        yield from _within(shape, bottom, first, last, row)
        return
    if first < top * row:
        yield from _within(shape, top - 1, first, top * row, row)
    if top < bottom:
        yield (top, *(0,) * (len(shape) - 1)), (bottom - top, *shape[1:]), top * row
    if bottom * row < last:
        yield from _within(shape, bottom, bottom * row, last, row)


def _within(
    shape: Index, index: int, first: int, last: int, row: int
) -> Iterator[tuple[Index, Index, int]]:
    base = index * row
    for offsets, sizes, start in rectangles(shape[1:], first - base, last - base):
        yield (index, *offsets), (1, *sizes), start + base


def _logical(local: Box, start: int, cuts: tuple[Cut, ...], shape: Index) -> Iterator[Piece]:
    """The rectangle split where a strided cut makes its logical indices jump.

    Cuts were made in order; undo the last one first.
    """
    found, sizes = [(local, local)], list(shape)  # of each part its local and its logical box
    for cut in reversed(cuts):
        m = sizes[cut.dim] // cut.outer
        found = [part for pair in found for part in _before(*pair, cut, m)]
        sizes[cut.dim] *= cut.n
    for part, box in found:
        yield Piece(box, start, local.sizes, part.slices_of(local))


def _before(local: Box, box: Box, cut: Cut, m: int) -> Iterator[tuple[Box, Box]]:
    """Parts of a box where each lay before a cut into blocks of m, beside their local boxes."""
    for part in _split(box, cut.dim, m):
        moved = [
            a + b - c for a, b, c in zip(local.offsets, part.offsets, box.offsets, strict=True)
        ]
        offsets = list(part.offsets)
        o, j = divmod(offsets[cut.dim], m)
        offsets[cut.dim] = (o * cut.n + cut.index) * m + j
        yield Box(tuple(moved), part.sizes), Box(tuple(offsets), part.sizes)


def _split(box: Box, dim: int, m: int) -> Iterator[Box]:
    """Cut a box at the multiples of m along a dim."""
    start, stop = box.offsets[dim], box.offsets[dim] + box.sizes[dim]
    while start < stop:
        end = min(stop, (start // m + 1) * m)
        offsets = (*box.offsets[:dim], start, *box.offsets[dim + 1 :])
        yield Box(offsets, (*box.sizes[:dim], end - start, *box.sizes[dim + 1 :]))
        start = end
