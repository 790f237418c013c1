"""From the ranks' bucket shards back to logical tensors; replicas must agree to the last bit."""

from collections.abc import Callable

import numpy as np
import torch
from equivalence.worker import RankResult
from torch import Tensor

from meshwright.ir.plan import Bucket, Param, Plan
from meshwright.ir.sizes import evaluate

Shards = Callable[[RankResult], dict[str, np.ndarray]]


class ReplicaError(AssertionError):
    """Ranks that should hold the same hold different values."""


def assemble(
    plan: Plan, ranks: list[RankResult], shards: Shards, trained: bool = False
) -> dict[str, Tensor]:
    """Logical tensors by parameter; `shards` picks gradients or parameters of a rank.

    trained: only of parameters that are, as frozen ones have no gradients.
    """
    found: dict[str, Tensor] = {}
    for bucket in (b for b in plan.buckets if b.trainable or not trained):
        for stage in bucket.stages:
            for name, value in _of_stage(plan, bucket, stage, ranks, shards).items():
                _same(name, found.setdefault(name, value), value, f"stages {bucket.stages}")
    return found


def _of_stage(
    plan: Plan, bucket: Bucket, stage: int, ranks: list[RankResult], shards: Shards
) -> dict[str, Tensor]:
    flats = []
    for tp in range(plan.mesh.size("tp")):
        home = plan.stage_ranks[stage]
        column = [r for r in ranks if r.coordinates["pp"] == home and r.coordinates["tp"] == tp]
        flats.append(_column(plan, bucket, column, shards))
    logical = {}
    for entry in bucket.entries:
        param = plan.param(entry.param)
        shape = param.local_shape(plan.mesh)
        stop = entry.offset + int(np.prod(shape))
        boxes = [flat[entry.offset : stop].view(shape) for flat in flats]
        logical[param.name] = _join(param, boxes)
    return logical


def _column(plan: Plan, bucket: Bucket, column: list[RankResult], shards: Shards) -> Tensor:
    """The flat bucket of one (stage, tp); replicas of sharded storage hold the same."""
    by_replica: dict[int, list[RankResult]] = {}
    for rank in column:
        replica = rank.coordinates.get("rep", 0) if plan.zero else 0
        by_replica.setdefault(replica, []).append(rank)
    copies = []
    for found in by_replica.values():
        found.sort(key=lambda r: (r.coordinates["dp"], r.coordinates.get("cp", 0)))
        copies.append(
            _whole(plan, bucket, [torch.from_numpy(shards(r)[bucket.name]) for r in found])
        )
    for other in copies[1:]:
        _same(bucket.name, copies[0], other, "replicas")
    return copies[0]


def _whole(plan: Plan, bucket: Bucket, column: list[Tensor]) -> Tensor:
    """The flat bucket of one (stage, tp) from its data-parallel ranks."""
    if plan.zero:
        return torch.cat(column)
    for other in column[1:]:
        _same(bucket.name, column[0], other, "data-parallel ranks")
    return column[0]


def _join(param: Param, boxes: list[Tensor]) -> Tensor:
    cuts = [(dim, s.outer) for dim, all_s in enumerate(param.placement.dims) for s in all_s]
    if not cuts:
        for other in boxes[1:]:
            _same(param.name, boxes[0], other, "tp ranks")
        return boxes[0]
    ((dim, outer),) = cuts
    shape = tuple(evaluate(size, {}) for size in param.shape)
    parts = [box.unflatten(dim, (evaluate(outer, {}), 1, -1)) for box in boxes]
    return torch.cat(parts, dim + 1).reshape(shape)


def _same(name: str, one: Tensor, other: Tensor, where: str) -> None:
    if not torch.equal(one, other):
        most = (one - other).abs().max().item()
        raise ReplicaError(f"{name} differs between {where} by {most:.3g}")
