"""Flat buckets: which parameters are stored, gathered and reduced together, and where.

Order within a bucket: parameters whose gradient is partial over tp first (one contiguous region
is all-reduced), then the other replicated ones, then the tp-sharded ones (their squares count on
every tp rank); matrices before vectors in each class, so that weight decay covers few runs.
"""

from dataclasses import replace

from meshwright.ir.mesh import AXIS_OF, STORAGE, TENSOR, Mesh
from meshwright.ir.phases import Joint
from meshwright.ir.plan import Bucket, Entry, InstancePlan, Param, Piece
from meshwright.ir.sizes import evaluate, num_elements

FROZEN = ".frozen"  # ends the name of an instance's bucket of frozen parameters

# Elements; keeps each view aligned to 128 bytes in bf16, as vectorised kernels want.
ALIGNMENT = 64


def make_buckets(
    instances: tuple[InstancePlan, ...],
    pieces: tuple[Piece, ...],
    params: tuple[Param, ...],
    mesh: Mesh,
) -> tuple[Bucket, ...]:
    """One bucket per instance and one for its frozen parameters; a tied parameter has a bucket of
    its own with all its homes."""
    by_name = {p.name: p for p in params}
    partial, frozen = _partial_params(instances, pieces), _frozen_params(instances, pieces)
    members: dict[str, list[str]] = {}
    stages: dict[str, set[int]] = {}
    for item in instances:
        for bucket in item.buckets:
            stages.setdefault(bucket, set()).add(item.stage)
            tied = bucket.removeprefix("tied.") if bucket.startswith("tied.") else None
            own = [p for p in item.params if f"tied.{p}" not in item.buckets]
            own = [p for p in own if (p in frozen) == bucket.endswith(FROZEN)]
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


def _partial_params(instances: tuple[InstancePlan, ...], pieces: tuple[Piece, ...]) -> set[str]:
    """Logical parameters whose gradient leaves some piece as a partial sum over tp."""
    by_name = {p.name: p for p in pieces}
    found = set()
    for item in instances:
        piece = by_name[item.piece]
        for name, grad in zip(item.params, Joint(piece.graph).grads.values(), strict=True):
            if grad and piece.placements[grad].partial_op(AXIS_OF[TENSOR]):
                found.add(name)
    return found


def _bucket(
    name: str, params: list[Param], partial: set[str], stages: tuple[int, ...], mesh: Mesh
) -> Bucket:
    def order(param: Param) -> tuple[int, bool]:
        sharded = param.placement.shard_dim(AXIS_OF[TENSOR]) is not None
        return (2 if sharded else 0 if param.name in partial else 1), len(param.shape) < 2

    offset, entries = 0, []
    for param in sorted(params, key=order):
        decay = len(param.shape) >= 2
        entries.append(Entry(param.name, offset, param.name in partial, decay))
        numel = evaluate(num_elements(param.local_shape(mesh)), {})
        offset += _round_up(numel, ALIGNMENT)
    numel = _round_up(offset, ALIGNMENT * mesh.count(*STORAGE))
    return Bucket(name, params[0].dtype, numel, stages, tuple(entries))


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
