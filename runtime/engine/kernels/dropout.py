"""Dropout by numbered draws: the same element falls under every plan, and when computed again.

Whether an element falls is a function of (seed, step, number of the dropout in the model, row of
the global batch, place of the element in its row). It is a hash in words of 32 bits, held in int64:
no product leaves 63 bits, so that every device gives the same bits. The keys of a step's dropouts
and of its rows, two words each, are made beforehand; of an element the place is hashed with both.

Two rounds of multiply and xor-shift with the constants of C. Wellons (hash-prospector, "lowest
bias" of two rounds).
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_FIRST = 0x21F0AAAD
_SECOND = -0x2CA5D269  # 0xD35A2D97 as a number below 2**31 in size, equal to it modulo 2**32
_HIGH = 0x1B873593  # of places beyond 2**32

# Of a dim that is cut over ranks: the first element that this rank holds, or all of them as int64
# [elements], and how many there are in all.
Cut = tuple[int | Tensor, int]


def dropout_keys(key: Tensor, numbers: Tensor) -> Tensor:
    """Return the keys of dropouts of a step, int64 [N, 3]: two words, and whether they act.

    key: of the step, int64 [5]: two words for dropouts, two for rows, 1 where dropout acts, 0 in an
    evaluation. numbers: int64 [N], of dropouts in the model.
    """
    first, second = _pair(key[0], key[1], numbers)
    return torch.stack((first, second, key[4].expand_as(first)), -1)


def row_keys(key: Tensor, rows: Tensor) -> Tensor:
    """Return the keys of rows, int64 [B, 2]. key: of the step. rows: places in the global batch."""
    return torch.stack(_pair(key[2], key[3], rows), -1)


def dropout(
    x: Tensor,
    draws: Tensor,
    rows: Tensor | None = None,
    *,
    p: float,
    number: int,
    row_dim: int = 0,
    inner: int = 1,
    cut: Mapping[int, Cut] | None = None,
) -> Tensor:
    """x [...] -> the same shape and dtype: 0 with probability p, else divided by 1 - p.

    draws: keys of dropouts, int64 [N, 3], of which this is `number`. rows: keys of the rows of the
    micro-batch, int64 [B, 2]; None where x holds no rows. row_dim: the dim of x that holds rows,
    each `inner` elements of it. cut: the dims that are cut over ranks.
    """
    first, second, acts = draws[number]
    place, row, size = _places(x, None if rows is None else row_dim, inner, cut or {})
    if rows is not None:
        first, second = first ^ rows[row, 0], second + rows[row, 1]
    if size > _WORD:
        second = second + (place >> 32) * _HIGH
    falls = _hashed(first, second, place) < acts * round(p * 2**32)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    factor = (~falls).to(wide.dtype) * (1.0 + acts.to(wide.dtype) * (scale - 1.0))
    return (wide * factor).to(x.dtype)


def _places(
    x: Tensor, row_dim: int | None, inner: int, cut: Mapping[int, Cut]
) -> tuple[Tensor, Tensor, int]:
    """Of each element its place in its row of the logical tensor, and its row, both broadcast to x;
    and how many places a row has."""
    place = row = torch.zeros((), dtype=torch.int64, device=x.device)
    sizes = [cut[dim][1] if dim in cut else size for dim, size in enumerate(x.shape)]
    sizes = [inner if dim == row_dim else size for dim, size in enumerate(sizes)]
    for dim in range(x.dim()):
        own = _along(x, dim, cut.get(dim, (0, 0))[0])
        if dim == row_dim:
            row, own = own // inner, own % inner
        if sizes[dim] == 1:
            continue
        place = place + own * math.prod(sizes[dim + 1 :])
    return place, row, math.prod(sizes)


def _along(x: Tensor, dim: int, start: int | Tensor) -> Tensor:
    """The places of a dim as [1, n, 1 ...]."""
    if not isinstance(start, Tensor):
        start = torch.arange(start, start + x.shape[dim], device=x.device)
    return start.view([1] * dim + [-1] + [1] * (x.dim() - dim - 1))


def _pair(first: Tensor, second: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    """Two words for each number; the first ones of two numbers differ."""
    zero = torch.zeros_like(first)
    first = _hashed(first, zero, number)
    return first, _hashed(first, second, number >> 32)


def _hashed(first: Tensor, second: Tensor, place: Tensor) -> Tensor:
    """A word for each place under a key of two words."""
    word = (first ^ place) & _WORD
    word = word ^ (word >> 16)
    word = (word * _FIRST) & _WORD
    word = ((word ^ (word >> 15)) + second) & _WORD
    word = word ^ (word >> 16)
    word = (word * _SECOND) & _WORD
    return word ^ (word >> 15)
