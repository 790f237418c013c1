"""Stochastic rounding of float32 to bfloat16, the same under every plan.

bfloat16 is float32's upper 16 bits. Adding 16 random bits to the lower ones and cutting them off
rounds away from 0 with a chance equal to the part that is lost, so the expected value is x. Without
it, an update below half a unit in the last place of a weight, 2^-9 of it, is lost for good.

The bits are a hash of (key, logical element index), where the key is made of seed, step and the
parameter's name: no rank or shard is in it. Torch and Triton do the same arithmetic on integers.
"""

import hashlib
import math

import torch
from torch import Tensor

from .rule import Part, Run

_MASK = 0xFFFFFFFF
# Elements at once in torch, which needs 64-bit integers for unsigned products of 32 bits.
_CHUNK = 1 << 20


def key_of(seed: int, step: int, name: str) -> int:
    """32 bits that depend on all three."""
    digest = hashlib.sha256(f"rounding/{seed}/{step}/{name}".encode()).digest()
    return int.from_bytes(digest[:4], "little")


def round_run(run: Run, wide: Run, like_weights: tuple[str, ...], seed: int, step: int) -> None:
    """Bring a float32 copy of a run back: weights and what is like them stochastically, other
    states to the nearest. Weights that are float32 themselves take theirs as they are."""
    if run.weights.dtype is wide.weights.dtype:
        like_weights = ()
        run.weights.copy_(wide.weights)
    for name, flat in run.states.items():
        if name not in like_weights:
            flat.copy_(wide.states[name])
    for part in run.parts if run.weights.dtype is not wide.weights.dtype else ():
        round_part(run.weights, wide.weights, part, key_of(seed, step, part.param.name))
        for name in like_weights:
            key = key_of(seed, step, f"{part.param.name}/{name}")
            round_part(run.states[name], wide.states[name], part, key)


def round_part(target: Tensor, source: Tensor, part: Part, key: int) -> None:
    """Round a part of a run: target bfloat16, source float32, both flat of the whole run."""
    into, values = rows_of(part, target), rows_of(part, source)
    for (to, first, stride), (x, _, _) in zip(into, values, strict=True):
        _round(to, x, first, stride, key)


def rows_of(part: Part, flat: Tensor) -> list[tuple[Tensor, int, int]]:
    """Return a part in one of its run's flat tensors as matrices: each with the flat index that its
    first element has in the whole parameter, and how far apart rows are there."""
    return _as_rows(part.view(flat), part.param.shape, part.piece.box.offsets)


def _as_rows(
    box: Tensor, shape: tuple[int, ...], offsets: tuple[int, ...]
) -> list[tuple[Tensor, int, int]]:
    if len(shape) == 2:
        return [(box, offsets[0] * shape[1] + offsets[1], shape[1])]
    if len(shape) < 2:
        return [(box.reshape(1, -1), sum(offsets), 0)]
    stride = math.prod(shape[1:])
    found = []
    for index in range(box.shape[0]):
        rest = _as_rows(box[index], shape[1:], offsets[1:])
        found += [(x, (offsets[0] + index) * stride + first, step) for x, first, step in rest]
    return found


def _round(target: Tensor, x: Tensor, first: int, stride: int, key: int) -> None:
    if x.is_cuda:
        from .triton_rounding import round_rows

        round_rows(target, x, first, stride, key)
        return
    columns = torch.arange(x.shape[1], device=x.device)
    step = max(1, _CHUNK // max(1, x.shape[1]))
    for top in range(0, x.shape[0], step):
        rows = torch.arange(top, min(top + step, x.shape[0]), device=x.device)
        index = first + rows[:, None] * stride + columns
        target[top : top + step] = stochastic(x[top : top + step], index, key)


def stochastic(x: Tensor, index: Tensor, key: int) -> Tensor:
    """x float32 rounded to bfloat16 by the bits of `index`, int64; not finite ones as they are."""
    bits = x.contiguous().view(torch.int32).to(torch.int64) & _MASK
    rounded = (bits + (random_bits(index, key) >> 16)) & 0xFFFF0000
    signed = torch.where(rounded >= 1 << 31, rounded - (1 << 32), rounded).to(torch.int32)
    return torch.where(x.isfinite(), signed.view(torch.float32), x).to(torch.bfloat16)


def random_bits(index: Tensor, key: int) -> Tensor:
    """32 random bits of each element, as int64: two rounds of a multiply-xorshift mix."""
    low, high = index & _MASK, index >> 32
    return _mix(_mix(low ^ key) ^ (high + (key >> 7)))


def _mix(x: Tensor) -> Tensor:
    """A bijection of 32 bits in which each bit of the input flips each of the output half the time.

    Constants of the hash of two rounds with the least bias known (C. Wellons, hash-prospector).
    """
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & _MASK
    x = ((x ^ (x >> 15)) * 0x735A2D97) & _MASK
    return x ^ (x >> 15)
