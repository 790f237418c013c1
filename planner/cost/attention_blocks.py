"""How much longer fused attention takes where its blocks are few, or of unequal length.

A multiprocessor works on one block at a time; where blocks are fewer than multiprocessors, the
longest block sets the time of a kernel. Read on cards with this many multiprocessors.
"""

import math
from typing import NamedTuple

MULTIPROCESSORS = 132

# Our kernels (runtime/engine/kernels/triton_attention.py) work on blocks of QUERIES queries, or of
# twice as many where heads are larger than 128; the kernel for the gradients of keys works on
# blocks of KEYS keys, or of half as many under a soft-cap with such heads. It takes the share
# OF_KEYS of a backward's time (Gemma 2 2B, H200, 2026-11-29).
QUERIES, KEYS, OF_KEYS = 64, 64, 0.75
# A block with a multiprocessor to itself takes ALONE of its time at the rate of long rows, and
# BESIDE times that next to another one, which heads of up to 128 leave room for. A block of queries
# takes MASKED keys more where a window has two edges. START_US is what a kernel takes beside its
# blocks, of the gradients of keys for each head of queries; SUM_US is what the sum of several parts
# takes beside its bytes. Of readings by heads of 128 and 256, 1 to 4 rows, 256 to 4,096 positions
# (H200, torch 2.11, 2026-12-01, benchmarks/README.md).
ALONE, BESIDE, MASKED, START_US, SUM_US = 0.82, 1.35, 256, 6.0, 12.0

# The vendor's attention works on blocks of VENDOR_QUERIES queries. LONGEST, of heads of up to 64
# and of larger ones, forward and backward: the longest block of a causal row takes the first
# number, and the second over the row's positions, times the mean of many blocks. A rank whose
# blocks are fewer than the multiprocessors takes that time, and SHARED of what its blocks take
# among many; WAITING is of what more waves of blocks wait for their last ones (readings of 2 to 64
# heads of 64 and 128, 512 to 4,096 positions, H200, cuDNN of torch 2.11, 2026-11-29).
VENDOR_QUERIES, SHARED, WAITING = 128, 0.1, 1.2
LONGEST = (((1.24, 340.0), (1.305, 120.0)), ((1.1, 200.0), (1.1, 200.0)))
SHORTEST = 512  # positions of the shortest row that was read


class Shape(NamedTuple):
    """An attention on one rank.

    queries, keys: rows over all heads and batch rows. length, key_length: positions of queries and
    of keys in a row. window: 0 where a query sees all keys. pairs: that the mask lets through.
    """

    queries: float
    keys: float
    length: float
    key_length: float
    window: float
    head_dim: int
    capped: bool
    pairs: float

    @property
    def group(self) -> int:
        """Heads of queries for one of keys."""
        return max(1, round(self.queries / self.keys * self.key_length / self.length))

    def seen(self, most: float, beside: float) -> float:
        """Return of `most` places those that the window lets a block see, with `beside` more."""
        return min(most, self.window + beside) if self.window else most


class Kernel(NamedTuple):
    """One of our kernels: its share of the flops; how much longer its longest block takes, at the
    rate of long rows, than all blocks on all multiprocessors; and whether all run at once."""

    share: float
    alone: float
    at_once: bool

    def over(self, full: float, long: float) -> float:
        """Return its time over the flops of the attention, at the rates of many blocks in rows of
        this length and in long rows."""
        alone = self.alone / long
        return self.share * (alone if self.at_once else max(1.0 / full, alone))


class Kernels(NamedTuple):
    """What the time of our kernels follows from: each of them, us beside their flops where all
    blocks run at once, and bytes of the pass that adds up parts."""

    each: tuple[Kernel, ...]
    start_us: float = 0.0
    passed_bytes: float = 0.0


def our_kernels(shape: Shape, backward: bool) -> Kernels:
    """Return what our kernels take for an attention, or for its gradients."""
    wide = shape.head_dim > 128
    queries = QUERIES << wide
    blocks = math.ceil(shape.queries / queries)
    share = 1.0 - OF_KEYS if backward else 1.0
    ahead = _kernel(shape, share, blocks, queries * shape.seen(shape.key_length, MASKED))
    start_us = START_US * ahead.at_once
    if not backward:
        return Kernels((ahead,), start_us)
    keys = KEYS >> (shape.capped and wide)
    blocks = math.ceil(shape.keys / keys)
    parts = key_parts(blocks, shape.group, _at_once(shape))
    heads = shape.group / parts
    pairs = keys * heads * shape.seen(shape.length, keys)
    behind = _kernel(shape, OF_KEYS, blocks * parts, pairs)
    start_us += START_US * heads * behind.at_once
    summed = 2 * 2 * 4 * parts * shape.keys * shape.head_dim if parts > 1 else 0.0
    return Kernels((behind, ahead), start_us + SUM_US * (parts > 1), summed)


def key_parts(blocks: int, group: int, at_once: int) -> int:
    """Return in how many parts the gradients of keys are made, as the kernels' own `key_parts`."""
    fitting = (n for n in range(1, group + 1) if group % n == 0 and blocks * n <= at_once)
    return max(fitting, default=1)


def _kernel(shape: Shape, share: float, blocks: int, pairs: float) -> Kernel:
    """Return a kernel. blocks: their number. pairs: that the mask lets through in the longest."""
    alone = ALONE * pairs * MULTIPROCESSORS / shape.pairs
    if blocks > MULTIPROCESSORS:
        alone *= BESIDE
    return Kernel(share, alone, blocks <= _at_once(shape))


def _at_once(shape: Shape) -> int:
    return MULTIPROCESSORS << (shape.head_dim <= 128)


def vendor_idle(shape: Shape, backward: bool, causal: bool, slowest: float) -> float:
    """Return how much longer an attention of the vendor's takes than one of many blocks.

    slowest: work of the slowest rank over the mean. Blocks without a causal mask, and those of the
    last of many shards, are nearly alike.
    """
    longest = 1.0
    if causal:
        alike, along = LONGEST[shape.head_dim > 64][backward]
        longest = max(1.0, (alike + along / max(shape.length, SHORTEST)) / slowest)
    rows = shape.queries * max(1.0, VENDOR_QUERIES / shape.length)
    waves = rows / (MULTIPROCESSORS * VENDOR_QUERIES)
    alone = longest / waves
    return max(alone + SHARED, 1.0 + WAITING * (1.0 - 1.0 / waves) * alone**2)
