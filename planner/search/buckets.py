"""Flat buckets: which parameters are stored, gathered and reduced together, and where.

Order within a bucket: parameters whose gradient is partial over tensor axes first (one contiguous
region is all-reduced over each set of axes), then the other replicated ones, then the sharded ones
(their squares count on every rank); matrices before vectors in each class, so that weight decay
covers few runs.
"""

from dataclasses import replace

from meshwright.ir.mesh import STORAGE, TENSOR, Mesh
from meshwright.ir.phases import Joint
from meshwright.ir.plan import Bucket, Entry, InstancePlan, Param, Piece
from meshwright.ir.sizes import evaluate, num_elements

FROZEN = ".frozen"  # ends the name of an instance's bucket of frozen parameters


def bucket_of(instance: str, param: Param, dtype: str, frozen: bool) -> str:
    """Name the bucket of an instance's own parameter. dtype: the model's; others lie apart."""
    kind = "" if param.dtype == dtype else f".{param.dtype}"
    return f"{instance}{kind}{FROZEN * frozen}"


# Elements; keeps each view aligned to 128 bytes in bf16, as vectorised kernels want.
ALIGNMENT = 64


def make_buckets(
    instances: tuple[InstancePlan, ...],
    pieces: tuple[Piece, ...],
    params: tuple[Param, ...],
    dtype: str,
    mesh: Mesh,
) -> tuple[Bucket, ...]:
    """One bucket per instance, and more for its frozen parameters and for those of another dtype
    than the model's; a tied parameter has a bucket of its own with all its homes."""
    by_name = {p.name: p for p in params}
    partial, frozen = _partial_params(instances, pieces, mesh), _frozen_params(instances, pieces)
    members: dict[str, list[str]] = {}
    stages: dict[str, set[int]] = {}
    for item in instances:
        for bucket in item.buckets:
            stages.setdefault(bucket, set()).add(item.stage)
            tied = bucket.removeprefix("tied.") if bucket.startswith("tied.") else None
            own = [p for p in item.params if f"tied.{p}" not in item.buckets]
            own = [p for p in own if bucket == bucket_of(item.name, by_name[p], dtype, p in frozen)]
            members.setdefault(bucket, [tied] if tied else own)
    return tuple(
        replace(
            _bucket(name, [by_name[p] for p in own], partial, tuple(sorted(stages[name])), mesh),
            trainable=frozen.isdisjoint(own),
        )
        for name, own in members.items()
    )


def _frozen_params(instances: tuple[InstancePlan, ...], pieces: tuple[Piece, ...]) -> set[str]:
    """Names of the logical parameters that are not trained."""
    given = {p.name: p.graph.inputs_of("param") for p in pieces}
    return {
        name
        for item in instances
        for own, name in zip(given[item.piece], item.params, strict=True)
        if not own.trainable
    }


def _partial_params(
    instances: tuple[InstancePlan, ...], pieces: tuple[Piece, ...], mesh: Mesh
) -> dict[str, tuple[str, ...]]:
    """Tensor axes along which a gradient leaves some piece as a partial sum, by logical name."""
    by_name = {p.name: p for p in pieces}
    found: dict[str, set[str]] = {}
    for item in instances:
        piece = by_name[item.piece]
        for name, grad in zip(item.params, Joint(piece.graph).grads.values(), strict=True):
            for axis in mesh.names(TENSOR) if grad else ():
                if piece.placements[grad].partial_op(axis):
                    found.setdefault(name, set()).add(axis)
    return {name: tuple(a for a in mesh.names(TENSOR) if a in axes) for name, axes in found.items()}


def _bucket(
    name: str,
    params: list[Param],
    partial: dict[str, tuple[str, ...]],
    stages: tuple[int, ...],
    mesh: Mesh,
) -> Bucket:
    def order(param: Param) -> tuple[int, tuple[str, ...], bool]:
        sharded, summed = any(param.placement.dims), partial.get(param.name, ())
        return (0 if summed else 2 if sharded else 1), summed, len(param.shape) < 2

    offset, entries = 0, []
    for param in sorted(params, key=order):
        decay = len(param.shape) >= 2
        entries.append(Entry(param.name, offset, partial.get(param.name, ()), decay))
        numel = evaluate(num_elements(param.local_shape(mesh)), {})
        offset += _round_up(numel, ALIGNMENT)
    numel = _round_up(offset, ALIGNMENT * mesh.count(*STORAGE))
    return Bucket(name, params[0].dtype, numel, stages, tuple(entries))


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
