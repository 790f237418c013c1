"""From the ranks' bucket shards back to logical tensors; replicas must agree to the last bit."""

from collections.abc import Callable
from itertools import product

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
    home, axes = plan.stage_ranks[stage], ("tp", "tq")
    flats: dict[tuple[int, ...], Tensor] = {}
    for place in product(*(range(plan.mesh.size(axis)) for axis in axes)):
        at = {"pp": home, **dict(zip(axes, place, strict=True))}
        column = [r for r in ranks if all(r.coordinates.get(a, 0) == n for a, n in at.items())]
        flats[place] = _column(plan, bucket, column, shards)
    logical = {}
    for entry in bucket.entries:
        param = plan.param(entry.param)
        shape = param.local_shape(plan.mesh)
        stop = entry.offset + int(np.prod(shape))
        boxes = {place: flat[entry.offset : stop].view(shape) for place, flat in flats.items()}
        places = {place: dict(zip(axes, place, strict=True)) for place in boxes}
        logical[param.name] = _join(param, [(places[p], box) for p, box in boxes.items()], plan)
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


def _join(param: Param, boxes: list[tuple[dict[str, int], Tensor]], plan: Plan) -> Tensor:
    """The logical tensor of every rank's box; ranks that hold the same elements must agree."""
    shape = tuple(evaluate(size, {}) for size in param.shape)
    whole = torch.full(shape, torch.nan, dtype=boxes[0][1].dtype)
    index = [
        [_elements(param, dim, place, plan) for dim in range(len(shape))] for place, _ in boxes
    ]
    for where, (_, box) in zip(index, boxes, strict=True):
        whole[_place(where)] = box
    for where, (_, box) in zip(index, boxes, strict=True):
        _same(param.name, whole[_place(where)], box, "tensor ranks")
    assert not whole.isnan().any(), f"{param.name}: no rank holds some elements"
    return whole


def _place(where: list[Tensor]) -> tuple[Tensor, ...]:
    """The index of elements that are named dim by dim; of a tensor without dims its one element."""
    return torch.meshgrid(*where, indexing="ij") if where else ()


def _elements(param: Param, dim: int, place: dict[str, int], plan: Plan) -> Tensor:
    """Logical indices of a dim that a place holds: of each shard's factor its own part."""
    size = evaluate(param.shape[dim], {})
    found = torch.arange(size)
    for shard in param.placement.dims[dim]:
        ranks = plan.mesh.size(shard.axis)
        part = size // (evaluate(shard.outer, {}) * ranks)
        found = found[found // part % ranks == place[shard.axis]]
    return found


def _same(name: str, one: Tensor, other: Tensor, where: str) -> None:
    if not torch.equal(one, other):
        most = (one - other).abs().max().item()
        raise ReplicaError(f"{name} differs between {where} by {most:.3g}")
