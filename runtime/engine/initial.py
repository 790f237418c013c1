"""Initial weights: the same for every plan, each rank making only what it holds.

A parameter's values come from generators seeded by (seed, name, row block). A shard of whole rows
makes its own blocks; other shards make each block and keep their part. Values are drawn in
float32, then cast.
"""

import hashlib
import re

import torch
from torch import Tensor

ROWS = 4096  # rows of one block


def initial_value(
    name: str,
    shape: tuple[int, ...],
    recipe: str,
    *,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    shards: tuple[tuple[int, int, int, int], ...] = (),
) -> Tensor:
    """The local box of a parameter: `shards` are (dim, outer, index, n) cuts, applied in order.

    Raises ValueError for a recipe that is not known.
    """
    fill, filled = _parse(recipe)
    rows = shape[0] if shape else 1
    first, last = 0, rows
    rest = list(shards)
    if shards and shards[0][0] == 0 and shards[0][1] == 1:
        _, _, index, n = rest.pop(0)
        first, last = index * rows // n, (index + 1) * rows // n
    parts = []
    for block in range(first // ROWS, -(-last // ROWS)):
        start, stop = block * ROWS, min((block + 1) * ROWS, rows)
        values = _draw((stop - start, *shape[1:]), fill, _generator(seed, name, block, device))
        for row, value in filled:
            if start <= row < stop:
                values[row - start] = value
        values = values[max(first - start, 0) : last - start]
        for dim, outer, index, n in rest:
            if dim > 0:
                values = _part(values, dim, outer, index, n)
        parts.append(values.to(dtype))
    whole = torch.cat(parts)
    for dim, outer, index, n in rest:
        if dim == 0:
            whole = _part(whole, dim, outer, index, n)
    return whole.reshape(()) if not shape else whole


def _part(x: Tensor, dim: int, outer: int, index: int, n: int) -> Tensor:
    m = x.shape[dim] // (outer * n)
    parts = x.reshape(*x.shape[:dim], outer, n, m, *x.shape[dim + 1 :])
    return parts.select(dim + 1, index).flatten(dim, dim + 1)


def _generator(seed: int, name: str, block: int, device: torch.device) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}/{block}".encode()).digest()
    generator = torch.Generator(device=device)
    return generator.manual_seed(int.from_bytes(digest[:7], "little"))


def _parse(recipe: str) -> tuple[str, list[tuple[int, float]]]:
    """`normal(0.0, 0.02) row(0, 0.0)` -> the fill, and the rows that hold one number after it."""
    fill, *rest = re.split(r" (?=row\()", recipe)
    rows = [re.fullmatch(r"row\((\d+), (\S+)\)", text) for text in rest]
    return fill, [(int(m[1]), float(m[2])) for m in rows if m]


def _draw(shape: tuple[int, ...], recipe: str, generator: torch.Generator) -> Tensor:
    match = re.fullmatch(r"(\w+)\((.*)\)", recipe)
    kind = match[1] if match else recipe
    numbers = [float(n) for n in match[2].split(",")] if match else []
    values = torch.empty(shape, dtype=torch.float32, device=generator.device)
    if kind == "constant":
        return values.fill_(numbers[0])
    if kind == "normal":
        return values.normal_(numbers[0], numbers[1], generator=generator)
    if kind == "uniform":
        return values.uniform_(numbers[0], numbers[1], generator=generator)
    if kind == "trunc_normal":
        mean, std, *limits = numbers
        low, high = limits or (mean - 2 * std, mean + 2 * std)
        return torch.nn.init.trunc_normal_(values, mean, std, low, high, generator=generator)
    raise ValueError(f"parameter initialiser {recipe!r} is not known; plan the model again")
