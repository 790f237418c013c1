"""What ops and redistributions cost one rank of a compute axis, in us and bytes.

Time of an op = max(flops / rate, outer bytes / bandwidth) + launch, on local shapes. Views are
free. Chains of pointwise ops and reductions run as one kernel: each pays only for what it is the
first of the chain to read and for what leaves the chain (`outer_traffic`), never below zero.
Collectives come from the cluster's measured curves, else alpha + bytes / beta.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import sympy

from meshwright.ir.dtypes import FLOATS, ITEM_BYTES
from meshwright.ir.graph import Graph, Op, Value
from meshwright.ir.mesh import AXIS_OF, TENSOR
from meshwright.ir.ops.table import FREE, POINTWISE, SOURCES, flops, passing
from meshwright.ir.phases import forward_ops
from meshwright.ir.placement import Placement, Shard
from meshwright.ir.sizes import SYMBOLS, Size, num_elements

from ..hardware.cluster import Cluster, collective_us

FUSED = POINTWISE | frozenset("sum sum.dim_IntList mean mean.dim amax cat slice_backward".split())
# A slice is a view of what is already there; the small price keeps the solver from idle slicing.
SLICE_US = 0.01
# Where attention ops read the queries [B, H, S, D].
_QUERIES = {"mw.attention": 0, "mw.attention_backward": 1}


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
    """Costs on `group` neighbouring ranks of one axis, at given B (rows of a rank) and S.

    wide_grads: gradients are summed in another dtype than they are made in.
    """

    cluster: Cluster
    group: int
    sizes: dict[str, int]
    axis: str = AXIS_OF[TENSOR]
    wide_grads: bool = False
    _elements: dict[tuple, float] = field(default_factory=dict, compare=False, repr=False)
    _moves: dict[tuple, float | None] = field(default_factory=dict, compare=False, repr=False)

    def full_bytes(self, value: Value) -> float:
        if value.shape not in self._elements:
            self._elements[value.shape] = number(num_elements(value.shape), self.sizes)
        return self._elements[value.shape] * ITEM_BYTES[value.dtype]

    def local_bytes(self, value: Value, placement: Placement) -> float:
        """Bytes one rank holds of a value."""
        whole = self.full_bytes(value)
        return whole if placement.shard_dim(self.axis) is None else whole / self.group

    def redistribute_us(self, value: Value, src: Placement, dst: Placement) -> float | None:
        """Time from one placement to another; None where there is no way (towards partial)."""
        key = value.shape, value.dtype, src, dst
        if key not in self._moves:
            self._moves[key] = self._redistribute_us(value, src, dst)
        return self._moves[key]

    def _redistribute_us(self, value: Value, src: Placement, dst: Placement) -> float | None:
        kind = redistribution(src, dst, self.axis)
        if kind is None or src == dst:
            return None if kind is None else 0.0
        if kind == "slice":
            return SLICE_US
        size = self.full_bytes(value) / (self.group if kind == "all_to_all" else 1)
        time = collective_us(self.cluster, kind, size, self.group)
        sides = {"all_gather": (src,), "reduce_scatter": (dst,), "all_to_all": (src, dst)}
        for side in sides.get(kind, ()):
            time += self._packing_us(value, side, size)
        return time

    def _packing_us(self, value: Value, side: Placement, size: float) -> float:
        """A copy (read and write) where the chunks of a collective are not whole in memory."""
        dim, shard = side.shard_dim(self.axis), side.shard(self.axis)
        assert dim is not None and shard is not None
        before = number(num_elements(value.shape[:dim]), self.sizes)
        if before * number(shard.outer, self.sizes) == 1:
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
        if op.target in FREE or op.target in SOURCES:
            return 0.0
        device = self.cluster.device
        moved = sum(
            self.local_bytes(v, p) for v, p in zip(work.operands, ins, strict=True) if v is not None
        )
        moved += sum(
            self.local_bytes(v, p) for v, p in zip(work.results, outs, strict=True) if v is not None
        )
        share = self.group if any(p.shard_dim(self.axis) is not None for p in ins + outs) else 1
        busy = number(work.flops, self.sizes) / share / self._rate(op, work)
        time = max(busy, moved / device.hbm_bytes_per_s) * 1e6
        launched = any(v is not None for v in work.results)
        return time + (device.launch_us if launched else 0.0)

    def _rate(self, op: Op, work: "OpWork") -> float:
        dtype = work.dtype
        device = self.cluster.device
        if op.target in _QUERIES and ITEM_BYTES[dtype] == 2:
            query = work.operands[_QUERIES[op.target]]
            assert query is not None
            *_, positions, head_dim = (number(size, self.sizes) for size in query.shape)
            if (rates := device.attention_rate(int(head_dim), positions)) is not None:
                return rates[op.target == "mw.attention_backward"]
        return device.matmul_rate(dtype)


def redistribution(src: Placement, dst: Placement, axis: str) -> str | None:
    """The collective from `src` to `dst`: its name, "" when equal, None when there is none.

    Two ways take a slice after the collective that they are named by: a partial max or log-sum-exp
    reaches a shard by an all_reduce, a shard another one of the same dim (other factors) by an
    all_gather, for the ranks' parts of it are no equal chunks that an all_to_all could exchange.
    """
    if src == dst:
        return ""
    if dst.partial_op(axis) is not None:
        return None
    if (op := src.partial_op(axis)) is not None:
        return "reduce_scatter" if op == "sum" and dst.shard(axis) else "all_reduce"
    if src.shard(axis) is None:
        return "slice"
    other_dim = dst.shard_dim(axis) not in (None, src.shard_dim(axis))
    return "all_to_all" if other_dim else "all_gather"


def held_copy(src: Placement, dst: Placement, axis: str) -> Placement:
    """The copy that stays resident for backward to read a value made in `src` as `dst`.

    The one it reads, but a slice is taken from the whole when backward comes.
    """
    return src if redistribution(src, dst, axis) == "slice" else dst


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
        while (op := self.graph.producer.get(name)) is not None and op.target in FREE:
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
            if op.target != "sum.dim_IntList":
                continue
            rank = len(self.graph.values[op.inputs[0]].shape)
            dims = {int(d) % rank for d in op.attr("dim") or range(rank)}
            if rank - 1 in dims:
                continue
            found[op.output.name] = op.output.name
            source = self.graph.producer.get(op.inputs[0])
            if source and source.target in FUSED and len(self.graph.users[op.inputs[0]]) == 1:
                found[source.output.name] = op.output.name
        return found

    def _work(self, op: Op, seen: set[tuple[str, bool, str]]) -> OpWork:
        values = [self.graph.values[n] for n in op.inputs if n]
        floats = [v.dtype for v in values if v.dtype in FLOATS] or [op.output.dtype]
        dtype = min(floats, key=lambda name: ITEM_BYTES[name])
        if op.target not in FUSED:
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
        while source is not None and source.target in FREE:
            source = self.graph.producer.get(source.inputs[0])
        fused = source is not None and source.target in FUSED | SOURCES
        if apart and source is not None and source.target not in SOURCES:
            return self._apart.get(source.output.name, "") != apart
        return not fused or (source is not None and self.is_backward(source) != key[1])

    def _leaves(self, name: str, op: Op) -> bool:
        """Whether a fused op's result is written: an output, or read beyond the chain or phase."""
        if name in self.graph.outputs:
            return True
        return any(
            self._leaves(user.output.name, op)
            if user.target in FREE
            else user.target not in FUSED or self.is_backward(user) != self.is_backward(op)
            for user in self.graph.users[name]
        )


def shard_on(rank: int, dim: int, axis: str, outer: Size = 1) -> Placement:
    """Everything whole but `dim`, split over `axis`."""
    return Placement(tuple((Shard(axis, outer),) if k == dim else () for k in range(rank)))
