"""What ops and redistributions cost one rank of a compute axis, in us and bytes.

Time of an op = max(flops / rate, outer bytes / bandwidth) + launch, on local shapes. Views are
free. Chains of pointwise ops and reductions run as one kernel: each pays only for what it is the
first of the chain to read and for what leaves the chain (`outer_traffic`), never below zero.
Collectives come from the cluster's measured curves, else alpha + bytes / beta.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import sympy

from meshwright.ir.dtypes import FLOATS, ITEM_BYTES
from meshwright.ir.graph import Graph, Op, Value
from meshwright.ir.mesh import Mesh
from meshwright.ir.ops.questions import flops, passing
from meshwright.ir.ops.registry import definition
from meshwright.ir.phases import forward_ops
from meshwright.ir.placement import Placement, Shard, local_outer
from meshwright.ir.sizes import SYMBOLS, Size, num_elements

from ..hardware.cluster import Cluster
from ..hardware.topology import strided_us
from .redistribution import Move, paths
from .redistribution import Path as MovePath

# A slice is a view of what is already there; the small price keeps the solver from idle slicing.
SLICE_US = 0.01


def number(size: Size, sizes: dict[str, int]) -> float:
    """A size or count as a number for {"B": rows, "S": tokens}; halves stay halves."""
    if isinstance(size, int):
        return float(size)
    return _number(size, tuple(sizes.items()))


@lru_cache(maxsize=65536)
def _number(size: sympy.Expr, sizes: tuple[tuple[str, int], ...]) -> float:
    values = dict(sizes)
    return float(compiled(size)(*(values[name] for name in SYMBOLS)))


@lru_cache(maxsize=8192)
def compiled(size: sympy.Expr) -> Callable[..., float | np.ndarray]:
    """A size or count as a numpy function of B and S, numbers or arrays that broadcast."""
    return sympy.lambdify(tuple(SYMBOLS.values()), size, "numpy")


@dataclass(frozen=True)
class Costs:
    """Costs on one rank of a compute mesh, at given B (rows of a rank) and S.

    mesh: the axes that place values, the last one of neighbouring ranks. wide_grads: gradients are
    summed in another dtype than they are made in.
    """

    cluster: Cluster
    mesh: Mesh
    sizes: dict[str, int]
    wide_grads: bool = False
    _elements: dict[tuple, float] = field(default_factory=dict, compare=False, repr=False)
    _ways: dict[tuple, tuple[float, MovePath] | None] = field(
        default_factory=dict, compare=False, repr=False
    )

    def full_bytes(self, value: Value) -> float:
        if value.shape not in self._elements:
            self._elements[value.shape] = number(num_elements(value.shape), self.sizes)
        return self._elements[value.shape] * ITEM_BYTES[value.dtype]

    def local_bytes(self, value: Value, placement: Placement) -> float:
        """Bytes one rank holds of a value."""
        return self.full_bytes(value) / self._cuts(placement)

    def ranks(self, axes: tuple[str, ...]) -> int:
        """Ranks along axes together."""
        return math.prod(self.mesh.size(axis) for axis in axes)

    def _cuts(self, placement: Placement) -> int:
        cuts = 1
        for shards in placement.dims:
            for shard in shards:
                cuts *= self.mesh.size(shard.axis)
        return cuts

    def collective_us(self, kind: str, size_bytes: float, *axes: str) -> float:
        """Time of a collective along adjacent axes of the mesh, major to minor, together."""
        group, stride = self.ranks(axes), self.mesh.stride(axes[-1])
        return strided_us(self.cluster, kind, size_bytes, group, stride)

    def redistribute_us(self, value: Value, src: Placement, dst: Placement) -> float | None:
        """Time from one placement to another; None where there is no way (towards partial)."""
        way = self.way(value, src, dst)
        return None if way is None else way[0]

    def moves(self, value: Value, src: Placement, dst: Placement) -> MovePath:
        """The cheapest way from one placement to another."""
        way = self.way(value, src, dst)
        assert way is not None, (value.name, src, dst)
        return way[1]

    def way(self, value: Value, src: Placement, dst: Placement) -> tuple[float, MovePath] | None:
        """Time and moves of the cheapest way from one placement to another."""
        if src == dst:
            return 0.0, ()
        key = value.shape, value.dtype, src, dst
        if key not in self._ways:
            found = [
                (sum(self.move_us(value, m) for m in path), path)
                for path in paths(src, dst, self.mesh)
            ]
            self._ways[key] = min(found, key=lambda way: way[0], default=None)
        return self._ways[key]

    def move_us(self, value: Value, move: Move) -> float:
        """Time of one collective of a redistribution."""
        if move.kind == "slice":
            return SLICE_US
        group, first = self.ranks(move.axes), move.axes[0]
        others = self._cuts(move.src)
        others //= group if move.src.shard(first) is not None else 1
        whole = self.full_bytes(value) / others
        size = whole / (group if move.kind == "all_to_all" else 1)
        time = self.collective_us(move.kind, size, *move.axes)
        sides = {
            "all_gather": (move.src,),
            "reduce_scatter": (move.dst,),
            "all_to_all": (move.src, move.dst),
        }
        for side in sides.get(move.kind, ()):
            time += self._packing_us(value, side, first, size)
        return time

    def _packing_us(self, value: Value, side: Placement, axis: str, size: float) -> float:
        """A copy (read and write) where the chunks of a collective are not whole in memory."""
        dim = side.shard_dim(axis)
        assert dim is not None
        before = number(num_elements(value.shape[:dim]), self.sizes)
        if before * number(local_outer(side, axis, self.mesh), self.sizes) == 1:
            return 0.0
        return 2 * size / self.cluster.device.hbm_bytes_per_s * 1e6 + self.cluster.device.launch_us

    def op_us(
        self,
        op: Op,
        ins: tuple[Placement, ...],
        outs: tuple[Placement, ...],
        work: "OpWork",
    ) -> float:
        """Time of one op with its operands and outputs in the given placements."""
        asked = definition(op)
        if asked.free or asked.source:
            return 0.0
        device = self.cluster.device
        moved = sum(
            self.local_bytes(v, p) for v, p in zip(work.operands, ins, strict=True) if v is not None
        )
        moved += sum(
            self.local_bytes(v, p) for v, p in zip(work.results, outs, strict=True) if v is not None
        )
        share = self._share(ins + outs) / self._slowest(op, ins)
        busy = number(work.flops, self.sizes) / share / self._rate(op, work)
        time = max(busy, moved / device.hbm_bytes_per_s) * 1e6
        launched = any(v is not None for v in work.results)
        return time + (device.launch_us if launched else 0.0)

    def _share(self, placements: tuple[Placement, ...]) -> int:
        """Ranks that an op's work is divided over: along axes that cut some value of it."""
        axes = {s.axis for p in placements for shards in p.dims for s in shards}
        share = 1
        for axis in axes:
            share *= self.mesh.size(axis)
        return share

    def _slowest(self, op: Op, ins: tuple[Placement, ...]) -> float:
        """Work of the slowest rank over the mean: the last of n shards of causal queries sees all
        keys, (2 - 1/n) times what a shard sees on average."""
        queries = definition(op).queries
        shards = ins[queries].dims[2] if queries is not None else ()
        if not shards or not op.attr("causal", True) or op.attr("window", 0):
            return 1.0
        return 2.0 - 1.0 / math.prod(self.mesh.size(shard.axis) for shard in shards)

    def _rate(self, op: Op, work: "OpWork") -> float:
        dtype = work.dtype
        device = self.cluster.device
        asked = definition(op)
        if asked.queries is not None and ITEM_BYTES[dtype] == 2:
            query = work.operands[asked.queries]
            assert query is not None
            *_, positions, head_dim = (number(size, self.sizes) for size in query.shape)
            if (rates := device.attention_rate(int(head_dim), positions)) is not None:
                return rates[asked.backward]
        return device.matmul_rate(dtype)


@dataclass(frozen=True)
class OpWork:
    """What an op does whatever its placement: flops, and the values it moves (None: fused away).

    operands follow the present operands in order, results the outputs. dtype: of the matrix unit.
    """

    flops: Size
    dtype: str
    operands: tuple[Value | None, ...]
    results: tuple[Value | None, ...]


@dataclass(frozen=True)
class GraphWork:
    """Work of every op of a joint graph, forward and backward told apart."""

    graph: Graph

    @cached_property
    def made_forward(self) -> frozenset[str]:
        """Names that exist once forward is done: its values, and the activation input."""
        made = {v.name for op in forward_ops(self.graph) for v in op.outputs}
        return frozenset(made | {i.value.name for i in self.graph.inputs_of("activation")})

    def is_backward(self, op: Op) -> bool:
        return op.output.name not in self.made_forward

    @cached_property
    def held(self) -> frozenset[str]:
        """Forward values that backward reads, each storage once (the first of a chain of views)."""
        read = {n for op in self.graph.ops if self.is_backward(op) for n in op.inputs}
        read &= self.made_forward - passing(self.graph)
        return frozenset(name for name in read if not self._views(name) & read)

    def _views(self, name: str) -> set[str]:
        """The values whose storage `name` is a view of."""
        found: set[str] = set()
        while (op := self.graph.producer.get(name)) is not None and definition(op).free:
            name = op.inputs[0]
            found.add(name)
        return found

    @cached_property
    def of(self) -> dict[str, OpWork]:
        """Work by the name of the op's first output."""
        seen: set[tuple[str, bool, str]] = set()
        return {op.output.name: self._work(op, seen) for op in self.graph.ops}

    @cached_property
    def _apart(self) -> dict[str, str]:
        """The sum over other dims than the last, by its name, for ops that only that sum reads.

        It is a kernel of its own beside sums over the last dim (a norm's backward has both), and
        reads what it needs anew.
        """
        found: dict[str, str] = {}
        for op in self.graph.ops:
            if not definition(op).sums_dims:
                continue
            rank = len(self.graph.values[op.inputs[0]].shape)
            dims = {int(d) % rank for d in op.attr("dim") or range(rank)}
            if rank - 1 in dims:
                continue
            found[op.output.name] = op.output.name
            source = self.graph.producer.get(op.inputs[0])
            if source and definition(source).fused and len(self.graph.users[op.inputs[0]]) == 1:
                found[source.output.name] = op.output.name
        return found

    def _work(self, op: Op, seen: set[tuple[str, bool, str]]) -> OpWork:
        values = [self.graph.values[n] for n in op.inputs if n]
        floats = [v.dtype for v in values if v.dtype in FLOATS] or [op.output.dtype]
        dtype = min(floats, key=lambda name: ITEM_BYTES[name])
        if not definition(op).fused:
            return OpWork(flops(op, self.graph), dtype, tuple(values), op.outputs)
        operands = tuple(v if self._first_read(v.name, op, seen) else None for v in values)
        results = tuple(v if self._leaves(v.name, op) else None for v in op.outputs)
        return OpWork(0, dtype, operands, results)

    def _first_read(self, name: str, op: Op, seen: set[tuple[str, bool, str]]) -> bool:
        """Whether a fused op is the first of its phase to read a value made outside the chain."""
        apart = self._apart.get(op.output.name, "")
        key = (name, self.is_backward(op), apart)
        if key in seen:
            return False
        seen.add(key)
        source = self.graph.producer.get(name)
        while source is not None and definition(source).free:
            source = self.graph.producer.get(source.inputs[0])
        if source is None:
            return True
        made = definition(source)
        if apart and not made.source:
            return self._apart.get(source.output.name, "") != apart
        return not (made.fused or made.source) or self.is_backward(source) != key[1]

    def _leaves(self, name: str, op: Op) -> bool:
        """Whether a fused op's result is written: an output, or read beyond the chain or phase."""
        if name in self.graph.outputs:
            return True
        return any(
            self._leaves(user.output.name, op)
            if definition(user).free
            else not definition(user).fused or self.is_backward(user) != self.is_backward(op)
            for user in self.graph.users[name]
        )


def shard_on(rank: int, dim: int, axis: str, outer: Size = 1) -> Placement:
    """Everything whole but `dim`, split over `axis`."""
    return Placement(tuple((Shard(axis, outer),) if k == dim else () for k in range(rank)))
