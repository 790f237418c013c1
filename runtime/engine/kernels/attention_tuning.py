"""Blocks of the attention kernels on a device, and how many of them it works on at a time."""

from functools import lru_cache
from typing import NamedTuple

import torch
import triton


class Blocks(NamedTuple):
    """Queries and keys of a block, and how a kernel runs."""

    queries: int
    keys: int
    warps: int
    stages: int


class Tuning(NamedTuple):
    """Blocks of each kernel for one head size."""

    forward: Blocks
    keys: Blocks
    queries: Blocks


# Read on an H200 (benchmarks/attention.py --tune, 2026-11-23).
TUNED = {
    64: Tuning(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 2)),
    128: Tuning(Blocks(64, 32, 4, 2), Blocks(32, 64, 4, 2), Blocks(64, 64, 4, 2)),
    256: Tuning(Blocks(128, 64, 8, 2), Blocks(64, 64, 8, 2), Blocks(128, 32, 8, 3)),
}
# Of the gradients of keys under a soft-cap, which takes registers: 2.7 and 4.1 ms for 3.2 and 4.3
# (Gemma 2 9B, 2026-11-29). Without one these blocks take 10 to 20% longer.
CAPPED = {256: Blocks(128, 32, 8, 2)}
# For devices whose multiprocessors share less memory: at most 56 KiB.
LEAN = {
    64: Tuning(Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 2)),
    128: Tuning(Blocks(64, 32, 4, 2), Blocks(32, 64, 4, 2), Blocks(64, 32, 4, 2)),
    256: Tuning(Blocks(64, 32, 8, 1), Blocks(16, 32, 4, 1), Blocks(32, 16, 4, 1)),
}
_SHARED = 224 * 2**10  # bytes that TUNED may take


def tuned(size: int, device: torch.device) -> Tuning:
    """Return the blocks for heads of a size on a device."""
    return (TUNED if shared_bytes(device) >= _SHARED else LEAN)[max(64, padded(size))]


def keys_blocks(size: int, device: torch.device, capped: bool) -> Blocks:
    """Return the blocks for the gradients of keys and values."""
    usual = tuned(size, device).keys
    if capped and shared_bytes(device) >= _SHARED:
        return CAPPED.get(padded(size), usual)
    return usual


@lru_cache
def blocks_at_once(size: int, device: torch.device) -> int:
    """Return how many blocks of keys a device works on at a time; 1 where it is the host.

    A multiprocessor takes two where heads have at most 128 features.
    """
    if device.type != "cuda":
        return 1
    each = 2 if size <= 128 else 1
    return each * torch.cuda.get_device_properties(device).multi_processor_count


@lru_cache
def shared_bytes(device: torch.device) -> int:
    """Memory that a kernel may share among the threads of a block."""
    if device.type != "cuda":
        return _SHARED
    found = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return int(found["max_shared_mem"])


def key_parts(blocks: int, group: int, at_once: int) -> int:
    """Return how many parts of a group of heads of queries have blocks of keys of their own: the
    most that divide it while all blocks run at once.

    us of the kernel for one row of Gemma 3 1B, 1,024 tokens, 16 blocks: 159 with its window, 55 in
    four parts; 257 and 83 without (H200, 2026-12-01).
    """
    fitting = (n for n in range(1, group + 1) if group % n == 0 and blocks * n <= at_once)
    return max(fitting, default=1)


def padded(size: int) -> int:
    """Return the columns of a block for heads of a size."""
    return max(16, triton.next_power_of_2(size))
