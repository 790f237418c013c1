"""Lowering: a joint graph with its redistributions written out as ops.

Each (value, target placement) is made once, right before its first use; what an output still
needs comes at the end. A way that ends in a slice (see redistribution) makes the whole value first.
Op `redistribute`: attrs axis and kind, and as the kind needs: op (of a reduction), dim and outer
(the shard made, or gathered), src_dim and src_outer (the shard an all_to_all starts from).
"""

from meshwright.ir.graph import Attr, Graph, Op, Value, verify
from meshwright.ir.mesh import AXIS_OF, TENSOR
from meshwright.ir.ops.table import PASSING, REDISTRIBUTE
from meshwright.ir.placement import Placement, replicated

from ..cost.op_cost import redistribution
from .ilp import Sharding


def lower(
    joint: Graph, sharding: Sharding, axis: str = AXIS_OF[TENSOR]
) -> tuple[Graph, dict[str, Placement]]:
    """The graph with explicit redistributions, and the placement of each of its values."""
    writer = _Writer(joint, sharding, axis)
    for op, placements in zip(joint.ops, sharding.reads, strict=True):
        writer.op(op, placements)
    outputs = tuple(
        writer.copy(name, placement, "") if placement is not None else name
        for name, placement in zip(joint.outputs, sharding.outputs, strict=True)
    )
    graph = Graph(joint.name, joint.inputs, tuple(writer.ops), outputs)
    return verify(graph), {name: writer.placements[name] for name in graph.values}


class _Writer:
    def __init__(self, joint: Graph, sharding: Sharding, axis: str) -> None:
        self.joint, self.axis = joint, axis
        self.placements = dict(sharding.made)
        self.copies: dict[tuple[str, Placement], str] = {}
        self.taken = set(joint.values)
        self.ops: list[Op] = []

    def op(self, op: Op, placements: tuple[Placement, ...]) -> None:
        wanted = iter(placements)
        targets = [(n, next(wanted) if n else None) for n in op.inputs]
        for name, target in targets[PASSING.get(op.target, len(targets)) :]:
            if self.placements[name] != target:
                targets.pop()  # what the op can do without is not worth a collective
        inputs = tuple(self.copy(n, t, op.source) if t is not None else n for n, t in targets)
        self.ops.append(Op(op.target, inputs, op.outputs, op.attrs, op.source))

    def copy(self, name: str, target: Placement, source: str) -> str:
        """The name of `name` in placement `target`, made now if nobody has."""
        have = self.placements[name]
        if have == target:
            return name
        if (name, target) not in self.copies:
            self.copies[name, target] = self._redistribute(name, have, target, source)
        return self.copies[name, target]

    def _redistribute(self, name: str, have: Placement, target: Placement, source: str) -> str:
        kind = redistribution(have, target, self.axis)
        assert kind, (name, have, target)
        if kind in ("all_reduce", "all_gather") and target.shard(self.axis) is not None:
            whole = self.copy(name, replicated(len(target.dims)), source)
            return self._emit(whole, name, "slice", target, source)
        return self._emit(name, name, kind, target, source)

    def _emit(self, operand: str, name: str, kind: str, target: Placement, source: str) -> str:
        value = self.joint.values[name]
        made = Value(self._name(f"{name}_{kind}"), value.dtype, value.shape)
        attrs = _attrs(kind, self.placements[operand], target, self.axis)
        self.ops.append(Op(REDISTRIBUTE, (operand,), (made,), attrs, source))
        self.placements[made.name] = target
        return made.name

    def _name(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self.taken:
            count += 1
            name = f"{wanted}_{count}"
        self.taken.add(name)
        return name


def _attrs(kind: str, src: Placement, dst: Placement, axis: str) -> tuple[tuple[str, Attr], ...]:
    found: dict[str, Attr] = {"axis": axis, "kind": kind}
    if kind in ("all_reduce", "reduce_scatter"):
        found["op"] = src.partial_op(axis)
    if kind != "all_reduce":
        side = src if kind == "all_gather" else dst
        shard = side.shard(axis)
        assert shard is not None
        found |= {"dim": side.shard_dim(axis), "outer": shard.outer}
    if kind == "all_to_all":
        shard = src.shard(axis)
        assert shard is not None
        found |= {"src_dim": src.shard_dim(axis), "src_outer": shard.outer}
    return tuple(found.items())
