"""Boxes of a flat range: every element once, at its logical place."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.runtime.engine.boxes import Box, Cut, pieces_of, rectangles

shapes = st.lists(st.integers(1, 5), min_size=0, max_size=3).map(tuple)


@settings(max_examples=200, deadline=None)
@given(shapes, st.data())
def test_rectangles_cover_a_flat_range_in_order(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    numel = math.prod(shape)
    first = data.draw(st.integers(0, numel))
    last = data.draw(st.integers(first, numel))
    flat = np.arange(numel).reshape(shape)
    seen = []
    for offsets, sizes, start in rectangles(shape, first, last):
        region = tuple(slice(a, a + n) for a, n in zip(offsets, sizes, strict=True))
        values = flat[region].reshape(-1)
        assert list(values) == list(range(start, start + values.size))  # contiguous
        seen += list(values)
    assert seen == list(range(first, last))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_pieces_of_a_cut_shard_hold_the_logical_elements(data: st.DataObject) -> None:
    n, outer, inner = (data.draw(st.integers(1, 3)) for _ in range(3))
    rows = data.draw(st.integers(1, 3))
    dim = data.draw(st.integers(0, 1))
    index = data.draw(st.integers(0, n - 1))
    size = outer * n * inner
    shape = (size, rows) if dim == 0 else (rows, size)
    logical = np.arange(size * rows).reshape(shape)
    parts = logical.reshape((outer, n, inner, rows) if dim == 0 else (rows, outer, n, inner))
    local = np.take(parts, index, axis=dim + 1)
    local_shape = (outer * inner, rows) if dim == 0 else (rows, outer * inner)
    flat = local.reshape(-1)
    first = data.draw(st.integers(0, flat.size))
    last = data.draw(st.integers(first, flat.size))
    seen = 0
    for piece in pieces_of(local_shape, (Cut(dim, outer, index, n),), first, last):
        numel = math.prod(piece.local)
        shard = flat[first:last][piece.start : piece.start + numel].reshape(piece.local)
        box = tuple(
            slice(a, a + k) for a, k in zip(piece.box.offsets, piece.box.sizes, strict=True)
        )
        assert np.array_equal(shard[piece.slices], logical[box])
        seen += piece.box.numel
    assert seen == last - first


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_pieces_of_a_shard_that_two_axes_cut(data: st.DataObject) -> None:
    """Both cut rows, the second inside what the first left, each in blocks."""
    outer, n, inner, m = (data.draw(st.integers(1, 3)) for _ in range(4))
    left = outer * inner * m * data.draw(st.integers(1, 2))  # rows that the first cut leaves
    at, within = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, m - 1))
    logical = np.arange(left * n * 2).reshape(left * n, 2)
    first = logical.reshape(outer, n, -1, 2)[:, at].reshape(left, 2)
    local = first.reshape(inner, m, -1, 2)[:, within].reshape(-1, 2)
    cuts = (Cut(0, outer, at, n), Cut(0, inner, within, m))
    seen = []
    for piece in pieces_of(local.shape, cuts, 0, local.size):
        numel = math.prod(piece.local)
        shard = local.reshape(-1)[piece.start : piece.start + numel].reshape(piece.local)
        region = tuple(
            slice(a, a + k) for a, k in zip(piece.box.offsets, piece.box.sizes, strict=True)
        )
        assert np.array_equal(shard[piece.slices], logical[region])
        seen += list(logical[region].reshape(-1))
    assert sorted(seen) == sorted(local.reshape(-1))


def test_slices_of_a_box_in_another() -> None:
    assert Box((2, 2), (2, 2)).slices_of(Box((0, 2), (4, 4))) == (slice(2, 4), slice(0, 2))
