"""Collectives of gradients and parameters as another stack runs them."""

from collections.abc import Iterable
from dataclasses import replace

from meshwright.ir.mesh import REDUCED, STORAGE
from meshwright.ir.plan import Bucket, Plan

from ..hardware.topology import Links
from ..simulate.step_model import StepModel, bucket_bytes, precision_of_plan


def reduced_whole(model: StepModel, plan: Plan, links: Links) -> StepModel:
    """Return a step whose gradients are all-reduced, though a rank updates a share of them."""
    precision = precision_of_plan(plan)
    carried = precision.carried / precision.param

    def whole(size: float) -> float:
        return links.group_us("all_reduce", carried * size, *REDUCED)

    stages = tuple(
        tuple(
            replace(u, reduce_us=whole(u.bucket_bytes), replicas_us=0.0) if u.reduce_us else u
            for u in units
        )
        for units in model.stages
    )
    return replace(model, stages=stages)


def sent_by_owners(model: StepModel, plan: Plan, links: Links) -> StepModel:
    """Return a step whose updated parameters are whole on one rank each, which sends its own to
    all others, one rank after the other."""
    ranks, found = plan.mesh.count(*STORAGE), []
    for rank in range(len(model.schedule)):
        buckets = updated_buckets(plan, rank)
        owners = min(ranks, len(params_of(buckets)))
        size = sum(map(bucket_bytes, buckets)) / max(owners, 1)
        found.append(owners * links.group_us("broadcast", size, *STORAGE))
    return replace(model, refresh_us=tuple(found))


def with_slices(model: StepModel, plan: Plan, slice_us: float) -> StepModel:
    """Return a step in which the host handles each slice of a rank's parameters by itself."""
    ranks = plan.mesh.count(*STORAGE)
    refresh = (
        us + slice_us * ranks * len(params_of(updated_buckets(plan, rank)))
        for rank, us in enumerate(model.refresh_us)
    )
    return replace(model, refresh_us=tuple(refresh))


def updated_buckets(plan: Plan, rank: int) -> list[Bucket]:
    """Return the buckets that a pipeline rank updates."""
    stages = {stage for stage, home in enumerate(plan.stage_ranks) if home == rank}
    return [b for b in plan.buckets if b.trainable and not stages.isdisjoint(b.stages)]


def params_of(buckets: Iterable[Bucket]) -> set[str]:
    """Return the names of the parameters in buckets."""
    return {entry.param for bucket in buckets for entry in bucket.entries}
