"""Instances, parameters and buckets of a sharded model, on the stages that cuts give them."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from meshwright.ir.errors import PlanError
from meshwright.ir.graph import Graph
from meshwright.ir.mesh import ROLES, TENSOR, Mesh
from meshwright.ir.placement import only_axis, replicated
from meshwright.ir.plan import Bucket, InstancePlan, Param, Piece
from meshwright.ir.traced import Traced

from ..remat.rules import SavedSet
from ..sharding.chain import Lowered, ShardedModel
from .buckets import bucket_of, make_buckets


def params_of(traced: Traced, sharded: ShardedModel) -> tuple[Param, ...]:
    """Every logical parameter with its placement on tensor axes, in order of first use."""
    found: dict[str, Param] = {}
    tensor = [name for name, role in ROLES.items() if role == TENSOR]
    inits = {i.ref: i.init for i in traced.graph.inputs_of("param")}
    for instance, piece in zip(traced.segmented.instances, sharded.instances, strict=True):
        low = sharded.lowered[piece]
        for item, name in zip(low.graph.inputs_of("param"), instance.params, strict=True):
            value = item.value
            placement = low.placements.get(value.name, replicated(len(value.shape)))
            placement = only_axis(placement, *tensor)
            param = Param(name, value.dtype, value.shape, placement, inits[name])
            if found.setdefault(name, param).placement != placement:
                raise PlanError(f"tied parameter {name} has two placements: {found[name]}, {param}")
    return tuple(found.values())


def with_variants(
    sharded: ShardedModel, saved: Sequence[SavedSet]
) -> tuple[ShardedModel, dict[str, SavedSet]]:
    """A piece for every set of values that instances of one keep, and the set by piece name.

    The most frequent set has the piece's own name, the others a number behind it.
    """
    uses = Counter(zip(sharded.instances, saved, strict=True))
    taken = set(sharded.lowered)
    names: dict[tuple[str, SavedSet], str] = {}
    for piece, kept in sorted(uses, key=lambda use: (-uses[use], use)):
        first = all(of != piece for of, _ in names)
        names[piece, kept] = piece if first else _numbered(piece, taken)
        taken.add(names[piece, kept])
    order = {use: names[use] for use in zip(sharded.instances, saved, strict=True)}
    lowered = {name: _renamed(sharded.lowered[piece], name) for (piece, _), name in order.items()}
    instances = tuple(order[use] for use in zip(sharded.instances, saved, strict=True))
    kept_by = {name: kept for (_, kept), name in order.items()}
    return replace(sharded, lowered=lowered, instances=instances), kept_by


def _numbered(name: str, taken: set[str]) -> str:
    return next(found for n in count(2) if (found := f"{name}_{n}") not in taken)


def _renamed(low: Lowered, name: str) -> Lowered:
    graph = Graph(name, low.graph.inputs, low.graph.ops, low.graph.outputs)
    return replace(low, name=name, graph=graph)


_LAYER = re.compile(r"^(.*?\d+\.)")


def instances_of(
    traced: Traced,
    sharded: ShardedModel,
    stages: Sequence[int],
    params: tuple[Param, ...],
    pieces: tuple[Piece, ...],
    mesh: Mesh,
) -> tuple[tuple[InstancePlan, ...], tuple[Bucket, ...]]:
    """Named instances on their stages, and the buckets that hold their parameters."""
    uses = Counter(name for i in traced.segmented.instances for name in set(i.params))
    tied = {name for name, count in uses.items() if count > 1}
    frozen = {i.ref for i in traced.graph.inputs_of("param") if not i.trainable}
    by_name = {p.name: p for p in params}
    taken: set[str] = set()
    instances = []
    for item, piece, stage in zip(
        traced.segmented.instances, sharded.instances, stages, strict=True
    ):
        match = next((_LAYER.match(p) for p in item.params if _LAYER.match(p)), None)
        name = f"{match[1]}{item.segment}" if match else item.segment
        name = name if name not in taken else _numbered(name, taken)
        taken.add(name)
        own = [by_name[p] for p in item.params if p not in tied]
        buckets = sorted({bucket_of(name, p, traced.dtype, p.name in frozen) for p in own})
        buckets += [f"tied.{p}" for p in item.params if p in tied]
        instances.append(
            InstancePlan(name, piece, stage, item.params, tuple(buckets), item.first_draw)
        )
    return tuple(instances), make_buckets(tuple(instances), pieces, params, traced.dtype, mesh)


def on_stages(
    buckets: tuple[Bucket, ...], instances: tuple[InstancePlan, ...]
) -> tuple[Bucket, ...]:
    """The buckets on the stages of the instances that hold them."""
    homes: dict[str, set[int]] = {b.name: set() for b in buckets}
    for item in instances:
        for name in item.buckets:
            homes[name].add(item.stage)
    return tuple(
        Bucket(b.name, b.dtype, b.numel, tuple(sorted(homes[b.name])), b.entries, b.trainable)
        for b in buckets
    )
