"""Initial weights: the same for every plan, each rank making only what it holds.

A parameter's values come from generators seeded by (seed, name, row block). A shard of whole rows
makes its own blocks; other shards make each block and keep their part. Random values are drawn in
float32; steps run in float32, in float64 where the parameter is, and the result is cast.
"""

import hashlib
import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from .recipe import FILLS, Step, apply, parse_recipe

ROWS = 4096  # rows of one block
_NONE: Mapping[str, Tensor] = MappingProxyType({})


def initial_value(
    name: str,
    shape: tuple[int, ...],
    recipe: str,
    *,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    shards: tuple[tuple[int, int, int, int], ...] = (),
    stored: Mapping[str, Tensor] = _NONE,
) -> Tensor:
    """The local box of a parameter: `shards` are (dim, outer, index, n) cuts, applied in order.

    stored: values that recipes name, by digest. Raises ValueError for a recipe that is not known.
    """
    steps, owner = parse_recipe(recipe)
    maker = _Maker(owner or name, shape, steps, seed, _work(dtype), device, stored)
    rows = shape[0] if shape else 1
    first, last = 0, rows
    rest = list(shards)
    if shards and shards[0][0] == 0 and shards[0][1] == 1:
        _, _, index, n = rest.pop(0)
        first, last = index * rows // n, (index + 1) * rows // n
    parts = []
    for block in range(first // ROWS, max(1, -(-last // ROWS))):  # of no rows an empty one
        start = block * ROWS
        values = maker.block(block)[max(first - start, 0) : last - start]
        for dim, outer, index, n in rest:
            if dim > 0:
                values = _part(values, dim, outer, index, n)
        parts.append(values.to(dtype))
    whole = torch.cat(parts)
    for dim, outer, index, n in rest:
        if dim == 0:
            whole = _part(whole, dim, outer, index, n)
    return whole.reshape(()) if not shape else whole


def _work(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


def _part(x: Tensor, dim: int, outer: int, index: int, n: int) -> Tensor:
    m = x.shape[dim] // (outer * n)
    parts = x.reshape(*x.shape[:dim], outer, n, m, *x.shape[dim + 1 :])
    return parts.select(dim + 1, index).flatten(dim, dim + 1)


def _generator(seed: int, name: str, block: int | str, device: torch.device) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}/{block}".encode()).digest()
    generator = torch.Generator(device=device)
    return generator.manual_seed(int.from_bytes(digest[:7], "little"))


class _Maker:
    """Makes blocks of rows of one parameter."""

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        steps: tuple[Step, ...],
        seed: int,
        work: torch.dtype,
        device: torch.device,
        stored: Mapping[str, Tensor],
    ) -> None:
        self.name, self.shape, self.steps = name, shape or (1,), steps
        self.seed, self.work, self.device, self.stored = seed, work, device, stored
        self.orthogonal: Tensor | None = None

    def block(self, block: int) -> Tensor:
        """Return the rows of a block, [rows, ...]."""
        start, stop = block * ROWS, min((block + 1) * ROWS, self.shape[0])
        size = (stop - start, *self.shape[1:])
        values = torch.zeros(size, dtype=self.work, device=self.device)
        after = [values]
        keep = any(step.earlier is not None for step in self.steps)
        for number, step in enumerate(self.steps):
            box = step.inside(self.shape, start, stop)
            if box is not None:
                operand = self._operand(step, number, block, start, after)
                values[box] = apply(step, values[box], operand)
            if keep:
                after.append(values.clone())
        return values

    def _operand(
        self, step: Step, number: int, block: int, start: int, after: list[Tensor]
    ) -> Tensor | None:
        """The tensor that a step takes beside the values: drawn, stored or earlier ones."""
        stop = start + after[0].shape[0]
        if step.earlier is not None:
            return after[step.earlier]
        if step.digest:
            return step.cut(self._stored(step.digest), self.shape, start, stop)
        if step.kind == "orthogonal":
            return self._orthogonal()[start:stop]
        if step.kind not in FILLS:
            return None
        # The first draw has no number of its own in the seed.
        place = f"{block}" if number == 0 else f"{block}/{number}"
        values = torch.empty(after[0].shape, dtype=torch.float32, device=self.device)
        generator = _generator(self.seed, self.name, place, self.device)
        drawn = FILLS[step.kind](values, step.numbers, generator)
        return drawn[step.inside(self.shape, start, stop)].to(self.work)

    def _stored(self, digest: str) -> Tensor:
        if digest not in self.stored:
            raise ValueError(
                f"parameter {self.name}: constants.json lacks {digest}; compile the plan again"
            )
        values = self.stored[digest].to(self.device, self.work)
        return values if values.dim() else values.reshape(1)

    def _orthogonal(self) -> Tensor:
        """The whole matrix: Q of a normal one, with the signs that make it uniform.

        In float64 on the CPU, so that ranks agree. Mezzadri, arXiv math-ph/0609050, section 5.
        """
        if self.orthogonal is None:
            rows, columns = self.shape[0], math.prod(self.shape[1:])
            generator = _generator(self.seed, self.name, 0, torch.device("cpu"))
            tall = torch.empty(max(rows, columns), min(rows, columns), dtype=torch.float64)
            q, r = torch.linalg.qr(tall.normal_(generator=generator))
            q = q * r.diagonal().sign()
            whole = (q.T if rows < columns else q).reshape(self.shape)
            self.orthogonal = whole.to(self.device, self.work)
        return self.orthogonal
