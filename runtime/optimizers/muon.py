"""Muon (Jordan 2024, kellerjordan.github.io/posts/muon): momentum made nearly orthogonal.

A hidden matrix moves by the nearest semi-orthogonal matrix to its momentum, found by five steps of
a quintic Newton-Schulz iteration. That is a function of the whole matrix, so it is never taken of a
shard: for some buckets at a time, the ranks of a stage

1. gather the directions over the ranks that store them (as they lie in the bucket),
2. bring each matrix's tensor cuts to one rank; matrices are dealt out over all ranks by work,
3. iterate, each on its own matrices, those of a shape in one batch: of small ones the launches take
   longer than the products. In the plan's dtype (bf16 as published, in a bf16 plan),
4. send the results back the same way: tensor cuts, then a reduce_scatter of what is 0 elsewhere.

Embeddings, head and vectors are AdamW's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..engine import mesh
from ..engine.buckets import FlatBucket
from ..engine.layout import Entry, Layout, Param
from ..engine.logical import place_box, take_box
from .adamw import AdamW
from .options import OptimizerOptions
from .rule import Rule, Run, Updated

Item = TypeVar("Item")

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
# Elements of the buckets that are updated at once, and of a batch of matrices; one may have more.
MOST_AT_ONCE = 1 << 26
_EPS = 1e-7


class Muon(Rule):
    """muon_scale "adamw": 0.2 sqrt(max(rows, columns)), which gives updates the size of AdamW's
    (Liu et al. 2025, arXiv 2502.16982); "original": sqrt(max(1, rows / columns))."""

    def __init__(self, options: OptimizerOptions, layout: Layout) -> None:
        self.options, self.numbers = options, {}
        self.adamw = AdamW(options, layout)
        self.layout = layout
        self.owners = _dealt(layout, mesh.count(*mesh.REDUCED), mesh.count(*mesh.TENSOR))

    def kind(self, param: Param) -> str:
        return "matrix" if param.hidden else "other"

    def states(self, kind: str) -> tuple[str, ...]:
        return ("momentum",) if kind == "matrix" else self.adamw.states(kind)

    def together(self, buckets: Sequence[FlatBucket]) -> list[list[FlatBucket]]:
        return chunks(buckets, [bucket.bucket.numel for bucket in buckets])

    def update_all(self, given: Sequence[Updated], lr: float, count: int) -> None:
        for bucket, runs in given:
            self.adamw.update(bucket, [r for r in runs if r.kind != "matrix"], lr, count)
        hidden = [(bucket, _matrices(runs)) for bucket, runs in given if self._has_hidden(bucket)]
        directions = [(bucket, self._directions(bucket, runs)) for bucket, runs in hidden]
        updates = self._orthogonal(directions)
        for (_, runs), update in zip(hidden, updates, strict=True):
            for run in runs:
                rate = lr * run.group.lr_scale
                run.weights.mul_(1.0 - rate * run.decay)
                run.weights.sub_(update[run.start : run.stop].to(run.weights.dtype), alpha=rate)

    def _has_hidden(self, bucket: FlatBucket) -> bool:
        return any(self.layout.param(e.param).hidden for e in bucket.bucket.entries)

    def _directions(self, bucket: FlatBucket, runs: Sequence[Run]) -> Tensor:
        """The directions of a bucket's hidden matrices in this rank's shard, 0 elsewhere."""
        made = torch.zeros(bucket.shard_numel, dtype=bucket.dtype, device=bucket.device)
        for run in runs:
            momentum = run.states["momentum"].lerp_(run.grad, 1.0 - self.options.momentum)
            made[run.start : run.stop].copy_(run.grad.lerp(momentum, self.options.momentum))
        return made

    def _orthogonal(self, given: Sequence[tuple[FlatBucket, Tensor]]) -> list[Tensor]:
        """The buckets' directions, this rank's shards of them, to updates."""
        fulls = [_gathered(*one) for one in given]
        founds = [torch.zeros_like(full) for full in fulls]
        mine = [
            (item, full, found)
            for (bucket, _), full, found in zip(given, fulls, founds, strict=True)
            for item in self._mine(bucket)
        ]
        wholes = [item.collect(full) for item, full, _ in mine]
        updates = self._updates({n: whole for n, whole in enumerate(wholes) if whole is not None})
        for n, (item, _, found) in enumerate(mine):
            item.share(updates.get(n), found)
        return [_scattered(bucket, found) for (bucket, _), found in zip(given, founds, strict=True)]

    def _mine(self, bucket: FlatBucket) -> list["_Matrix"]:
        """The matrices of the bucket that this rank works on, with its neighbours along tensor."""
        items = []
        for entry in bucket.bucket.entries:
            data, tensor = self.owners.get(entry.param, (-1, -1))
            if data == mesh.index(*mesh.REDUCED):
                items.append(_Matrix(self.layout.param(entry.param), entry, tensor))
        return items

    def _updates(self, directions: dict[int, Tensor]) -> dict[int, Tensor]:
        """The updates of some matrices' directions."""
        updates = {}
        for batch in _alike(directions):
            made = newton_schulz(torch.stack([wide(directions[n]) for n in batch]))
            for n, update in zip(batch, made, strict=True):
                rows, columns = directions[n].shape
                own = update.T if rows > columns else update
                updates[n] = own.mul_(self._size(rows, columns))
        return updates

    def _size(self, rows: int, columns: int) -> float:
        if self.options.muon_scale == "original":
            return max(1.0, rows / columns) ** 0.5
        return 0.2 * max(rows, columns) ** 0.5


def _matrices(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.kind == "matrix"]


def wide(matrix: Tensor) -> Tensor:
    """A matrix, transposed where it has more rows than columns."""
    return matrix.T if matrix.shape[0] > matrix.shape[1] else matrix


def _alike(matrices: dict[int, Tensor]) -> list[list[int]]:
    """Keys of matrices that are of one shape once they are wide, in batches of at most
    MOST_AT_ONCE elements."""
    shapes: dict[tuple[int, ...], list[int]] = {}
    for n, matrix in matrices.items():
        shapes.setdefault(tuple(sorted(matrix.shape)), []).append(n)
    return [
        batch
        for shape, numbers in shapes.items()
        for batch in chunks(numbers, [math.prod(shape)] * len(numbers))
    ]


def chunks(items: Sequence[Item], sizes: Sequence[int]) -> list[list[Item]]:
    """Split items, in order, into lists of at most MOST_AT_ONCE elements; a larger one is alone."""
    found: list[list[Item]] = []
    room = 0
    for item, size in zip(items, sizes, strict=True):
        if size > room or not found:
            found.append([])
            room = MOST_AT_ONCE
        found[-1].append(item)
        room -= size
    return found


def newton_schulz(matrices: Tensor) -> Tensor:
    """Matrices [n, rows, columns], none with more rows than columns, with their singular values
    brought near 1, in their own dtype."""
    a, b, c = COEFFICIENTS
    norms = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)
    x = matrices / norms.clamp(min=_EPS)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


@dataclass(frozen=True)
class _Matrix:
    """A matrix of a bucket; tensor: the rank along tensor that iterates on it."""

    param: Param
    entry: Entry
    tensor: int

    @property
    def here(self) -> bool:
        return mesh.index(*mesh.TENSOR) == self.tensor

    def _box(self, full: Tensor) -> Tensor:
        stop = self.entry.offset + math.prod(self.entry.shape)
        return full[self.entry.offset : stop].view(self.entry.shape)

    def collect(self, full: Tensor) -> Tensor | None:
        """The whole matrix on its owner, from the boxes along tensor; None elsewhere."""
        box = self._box(full)
        if not self.param.shards:
            return box if self.here else None
        count, group = mesh.count(*mesh.TENSOR), mesh.group_of(*mesh.TENSOR)
        boxes = [torch.empty_like(box) for _ in range(count)] if self.here else None
        dist.gather(box.contiguous(), boxes, group=group, group_dst=self.tensor)
        if boxes is None:
            return None
        whole = torch.empty(self.param.shape, dtype=box.dtype, device=box.device)
        for place, part in zip(mesh.places(*mesh.TENSOR), boxes, strict=True):
            place_box(whole, part, self.param, place)
        return whole

    def share(self, update: Tensor | None, full: Tensor) -> None:
        """The owner's update into the boxes along tensor of `full`."""
        box, group = self._box(full), mesh.group_of(*mesh.TENSOR)
        if group is None:
            assert update is not None
            box.copy_(update)
        elif self.param.shards:
            parts = None
            if update is not None:
                places = mesh.places(*mesh.TENSOR)
                parts = [take_box(update, self.param, place) for place in places]
            dist.scatter(box, parts, group=group, group_src=self.tensor)
        else:
            if update is not None:
                box.copy_(update)
            dist.broadcast(box, group=group, group_src=self.tensor)


def _dealt(layout: Layout, data: int, tensor: int) -> dict[str, tuple[int, int]]:
    """(data, tensor) places of hidden matrices' owners: the longest first, to the idlest rank."""
    work = {(d, t): 0.0 for d in range(data) for t in range(tensor)}
    owners = {}
    matrices = [p for p in layout.params if p.hidden]
    for param in sorted(matrices, key=lambda p: (-_work(p.shape), p.name)):
        owner = min(work, key=lambda rank: work[rank])
        work[owner] += _work(param.shape)
        owners[param.name] = owner
    return owners


def _work(shape: tuple[int, ...]) -> float:
    """Multiplications of an iteration, in cubes of the shorter side."""
    short, long = sorted(shape)
    return short * short * (2.0 * long + short)


def _gathered(bucket: FlatBucket, shard: Tensor) -> Tensor:
    """The whole local bucket of a shard."""
    if bucket.cuts == 1:
        return shard
    full = torch.empty(bucket.bucket.numel, dtype=shard.dtype, device=shard.device)
    dist.all_gather_into_tensor(full, shard, group=bucket.group)
    return full


def _scattered(bucket: FlatBucket, full: Tensor) -> Tensor:
    """The shard of a local bucket in which every element is 0 but on one rank that sums it."""
    if bucket.group is None:
        return full
    if bucket.cuts == 1:
        dist.all_reduce(full, group=bucket.group)
        return full
    shard = torch.empty(bucket.shard_numel, dtype=full.dtype, device=full.device)
    dist.reduce_scatter_tensor(shard, full, group=bucket.group)
    if bucket.replicas is not None:
        dist.all_reduce(shard, group=bucket.replicas)
    return shard
