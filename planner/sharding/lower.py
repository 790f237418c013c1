"""Lowering: a joint graph with its redistributions written out as ops.

Each move of a value is made once, right before its first use; what an output still needs comes at
the end. Op `redistribute`: attrs axis (several together: their names, dots between them) and kind,
and as the kind needs: op (of a reduction), dim and outer (the shard made, or gathered), src_dim and
src_outer (the shard an all_to_all starts from); mirrored and src_mirrored where that shard is; halo
(its elements). Outer sizes count elements of the local tensor, which other axes have cut.
"""

from meshwright.ir.graph import Attr, Graph, Op, Value, verify
from meshwright.ir.mesh import Mesh
from meshwright.ir.ops.collective import REDISTRIBUTE
from meshwright.ir.ops.registry import definition
from meshwright.ir.placement import Placement, local_outer

from ..cost.op_cost import Costs
from ..cost.redistribution import HALO_KINDS, Move
from .ilp import Sharding


def lower(joint: Graph, sharding: Sharding, costs: Costs) -> tuple[Graph, dict[str, Placement]]:
    """The graph with explicit redistributions, and the placement of each of its values."""
    writer = _Writer(joint, sharding, costs)
    for op, placements in zip(joint.ops, sharding.reads, strict=True):
        writer.op(op, placements)
    outputs = tuple(
        writer.copy(name, placement, "") if placement is not None else name
        for name, placement in zip(joint.outputs, sharding.outputs, strict=True)
    )
    graph = Graph(joint.name, joint.inputs, tuple(writer.ops), outputs)
    return verify(graph), {name: writer.placements[name] for name in graph.values}


class _Writer:
    def __init__(self, joint: Graph, sharding: Sharding, costs: Costs) -> None:
        self.joint, self.costs = joint, costs
        self.placements = dict(sharding.made)
        self.copies: dict[tuple[str, Placement], str] = {}
        self.taken = set(joint.values)
        self.ops: list[Op] = []

    def op(self, op: Op, placements: tuple[Placement, ...]) -> None:
        wanted = iter(placements)
        targets = [(n, next(wanted) if n else None) for n in op.inputs]
        asked = definition(op).recomputed_operand
        for name, target in targets[len(targets) if asked is None else asked :]:
            if self.placements[name] != target:
                targets.pop()  # what the op can do without is not worth a collective
        inputs = tuple(self.copy(n, t, op.source) if t is not None else n for n, t in targets)
        self.ops.append(Op(op.target, inputs, op.outputs, op.attrs, op.source))

    def copy(self, name: str, target: Placement, source: str) -> str:
        """The name of `name` in placement `target`, made now if nobody has."""
        found = name
        for move in self.costs.moves(self.joint.values[name], self.placements[name], target):
            if (name, move.dst) not in self.copies:
                self.copies[name, move.dst] = self._emit(found, name, move, source)
            found = self.copies[name, move.dst]
        return found

    def _emit(self, operand: str, name: str, move: Move, source: str) -> str:
        value = self.joint.values[name]
        made = Value(self._name(f"{name}_{move.kind}"), value.dtype, value.shape)
        attrs = _attrs(move, self.costs.mesh)
        self.ops.append(Op(REDISTRIBUTE, (operand,), (made,), attrs, source))
        self.placements[made.name] = move.dst
        return made.name

    def _name(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self.taken:
            count += 1
            name = f"{wanted}_{count}"
        self.taken.add(name)
        return name


def _attrs(move: Move, mesh: Mesh) -> tuple[tuple[str, Attr], ...]:
    axis, kind = move.axes[0], move.kind
    found: dict[str, Attr] = {"axis": ".".join(move.axes), "kind": kind}
    if kind in HALO_KINDS:
        return tuple((found | _halo_attrs(move, axis)).items())
    if kind in ("all_reduce", "reduce_scatter"):
        found["op"] = move.src.partial_op(axis)
    if kind != "all_reduce":
        found |= _cut_attrs(move.src if kind == "all_gather" else move.dst, axis, mesh)
    if kind == "all_to_all":
        found |= {f"src_{name}": value for name, value in _cut_attrs(move.src, axis, mesh).items()}
    return tuple(found.items())


def _halo_attrs(move: Move, axis: str) -> dict[str, Attr]:
    shards = move.src.shard(axis), move.dst.shard(axis)
    halo = max(shard.halo for shard in shards if shard is not None)
    return {"dim": move.src.shard_dim(axis), "halo": halo}


def _cut_attrs(side: Placement, axis: str, mesh: Mesh) -> dict[str, Attr]:
    """Return how one side of a move is cut along an axis."""
    outer = local_outer(side, axis, mesh)
    return {"dim": side.shard_dim(axis), "outer": outer, **_mirrored(side, axis)}


def _mirrored(side: Placement, axis: str) -> dict[str, Attr]:
    shard = side.shard(axis)
    return {"mirrored": True} if shard is not None and shard.mirrored else {}
