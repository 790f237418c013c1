"""Rows times the matrix of their expert in Triton: rows are read and written where they lie.

A matmul of groups wants the rows of a group beside each other, so that rows are put in the order of
experts before it and back after it: 29 GB a layer and step of an eight-of-128 mixture at 32,768
tokens. These kernels take the order instead: a tile of rows reads row `order[p]`, and writes it.

Legend: R rows in the order of experts, E experts of this rank, I/O features, G groups, which are
the E runs of rows and a last one of rows that no expert of this rank takes. `order` [R] int64 is
the row at each place, `ends` [E + 1] int64 where the run of each expert begins and the last ends.
`choices`: rows of an operand of which one serves that many rows, as a token serves its choices.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from .attention_tuning import shared_bytes


@dataclass(frozen=True)
class Tile:
    """Sizes of a block: rows and columns of the output, and depth of what is summed over."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


# The fastest of eight blocks on an H200, 2026-11-25 (benchmarks/experts.py).
TUNED = Tile(128, 256, 64, 8, 3)
LEAN = Tile(64, 128, 32, 4, 3)
_SHARED = 160 * 2**10  # bytes of shared memory that TUNED needs, and some to spare
_BAND = 8  # tiles of rows that share what is read of a matrix, while it is in the L2 cache


@lru_cache
def tuned(device: torch.device) -> Tile:
    """Return the block for a device."""
    return TUNED if shared_bytes(device) >= _SHARED else LEAN


def products(x: Tensor, choices: int, w_EIO: Tensor, order: Tensor, ends: Tensor) -> Tensor:
    """x [R / choices, I] -> [R, O]: each row times its expert's matrix, or 0 without one."""
    tile, rows = tuned(x.device), len(order)
    made = x.new_empty(rows, w_EIO.shape[2])
    groups, firsts = _tiles(ends, rows, tile.rows)
    _products_kernel[(len(groups) * triton.cdiv(made.shape[1], tile.columns),)](
        *(x, w_EIO, made, order, ends, groups, firsts, *w_EIO.stride()),
        *(rows, w_EIO.shape[0], x.shape[1], made.shape[1], choices, len(groups)),
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        BAND=_BAND,
        EXACT=x.dtype == torch.float32,
        WHOLE=x.shape[1] % tile.depth == 0,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return made


def _tiles(ends: Tensor, rows: int, size: int) -> tuple[Tensor, Tensor]:
    """(group, first place) of each tile of rows: at most one a group more than full ones.

    A group begins a tile of its own. Tiles behind the last one have the group G.
    """
    count = rows // size + len(ends)
    groups, firsts = torch.empty(2, count, dtype=torch.int32, device=ends.device)
    block = triton.next_power_of_2(len(ends))
    _tiles_kernel[(count,)](ends, groups, firsts, rows, len(ends), SIZE=size, BLOCK=block)
    return groups, firsts


@triton.jit
def _tiles_kernel(  # type: ignore[no-untyped-def]
    ends, groups, firsts, rows, count, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    tile = tl.program_id(0)
    group = tl.arange(0, BLOCK)
    begin = tl.load(ends + group, mask=group < count, other=0).to(tl.int32)
    end = tl.load(ends + group + 1, mask=group < count - 1, other=0).to(tl.int32)
    end = tl.where(group == count - 1, rows, end)
    tiles = tl.where(group < count, (end - begin + SIZE - 1) // SIZE, 0)
    behind = tl.cumsum(tiles, 0)
    mine = tl.sum((behind <= tile).to(tl.int32), 0)
    before = tl.sum(tl.where(group < mine, tiles, 0), 0)
    first = tl.sum(tl.where(group == mine, begin, 0), 0) + (tile - before) * SIZE
    tl.store(groups + tile, tl.minimum(mine, count))
    tl.store(firsts + tile, first)


@triton.jit
def _products_kernel(  # type: ignore[no-untyped-def]
    x, w, made, order, ends, groups, firsts, step_e, step_i, step_o,
    total, experts, inner, outer, choices, tiles,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, BAND: tl.constexpr,
    EXACT: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """One tile of rows of one group, times one tile of columns of its matrix.

    Programs go down a band of tiles of rows, then to the next columns.
    """
    of_band = BAND * tl.cdiv(outer, COLUMNS)
    first_tile = tl.program_id(0) // of_band * BAND
    high = tl.minimum(tiles - first_tile, BAND)
    tile = first_tile + tl.program_id(0) % of_band % high
    group = tl.load(groups + tile)
    if group > experts:
        return
    place = tl.load(firsts + tile) + tl.arange(0, ROWS)
    end = tl.load(ends + group + 1, mask=group < experts, other=total)
    row = tl.load(order + place, mask=place < end, other=0)
    column = (tl.program_id(0) % of_band // high) * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    if group < experts:
        left = x + (row // choices)[:, None] * inner + depth[None, :]
        right = w + group.to(tl.int64) * step_e + depth[:, None] * step_i
        right += (column % outer)[None, :] * step_o
        for first in range(0, inner, DEPTH):
            if WHOLE:
                a = tl.load(left)
                b = tl.load(right)
            else:
                a = tl.load(left, mask=depth[None, :] < inner - first, other=0.0)
                b = tl.load(right, mask=depth[:, None] < inner - first, other=0.0)
            sums = tl.dot(a, b, sums, input_precision="ieee" if EXACT else None)
            left += DEPTH
            right += DEPTH * step_i
    at = made + row[:, None] * outer + column[None, :]
    inside = (place < end)[:, None] & (column < outer)[None, :]
    tl.store(at, sums.to(made.dtype.element_ty), mask=inside)
