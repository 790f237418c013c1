"""What ops and redistributions cost one rank of a compute axis, in us and bytes.

Time of an op = max(flops / rate, outer bytes / bandwidth) + launch, on local shapes, and the
passes that its kernels make beside that. Views are free. Chains of pointwise ops and reductions run
as one kernel: each pays only for what it is the first of the chain to read and for what leaves the
chain (`outer_traffic`), never below zero.
Collectives come from the cluster's measured curves, else alpha + bytes / beta.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from meshwright.ir.dtypes import ITEM_BYTES
from meshwright.ir.graph import Graph, Op, Value
from meshwright.ir.mesh import Mesh
from meshwright.ir.ops.implementation import Implementation
from meshwright.ir.ops.questions import favours_late_queries, implementation_of
from meshwright.ir.ops.registry import definition
from meshwright.ir.placement import Placement, Shard, local_outer
from meshwright.ir.sizes import Size, num_elements

from ..hardware.cluster import READ_DEPTH, TRITON, Cluster
from ..hardware.topology import strided_us
from .attention_blocks import Shape, our_kernels, vendor_idle
from .column_sums import JOINED_BYTES, JOINED_US, MEAN_BYTES, SECOND_US, SHORT_ROW, joins_rows
from .counts import number
from .graph_work import OpWork
from .load import Attention, Load, RankGraph, Rate
from .phase_work import FunctionTable
from .redistribution import HALO_KINDS, Move, MovePath, move_paths

# A slice is a view of what is already there; the small price keeps the solver from idle slicing.
SLICE_US = 0.01
# What a matmul on a GPU takes beside its flops at the rate of large ones and a launch: the mean of
# a layer's 21 in a kernel table of llama-125m, 512 tokens (H200, 2026-11-28).
FILL_US = 1.1
# (forward, backward) of its rate that are left under a soft-cap (H200, 2026-11-23 and 29).
SOFTCAP_SHARE = (0.81, 0.83)
VENDOR = "cudnn"
Rows: TypeAlias = tuple[float, float]  # rows and columns of a rank


class Scores(NamedTuple):
    """What it takes to hold the scores of an attention: flops and their dtype, bytes read and
    written, bytes alive at once."""

    flops: float
    dtype: str
    moved_bytes: float
    held_bytes: float


@dataclass(frozen=True)
class Costs:
    """Costs on one rank of a compute mesh, at given B (rows of a rank) and S.

    mesh: the axes that place values, the last one of neighbouring ranks. wide_grads: gradients are
    summed in another dtype than they are made in. functions: of pieces, which costs at other sizes
    may share.
    """

    cluster: Cluster
    mesh: Mesh
    sizes: dict[str, int]
    wide_grads: bool = False
    functions: FunctionTable = field(default_factory=FunctionTable, compare=False, repr=False)
    _rates: dict[Rate, float] = field(default_factory=dict, compare=False, repr=False)
    _numbers: dict[Size, float] = field(default_factory=dict, compare=False, repr=False)
    _elements: dict[tuple, float] = field(default_factory=dict, compare=False, repr=False)
    _moves: dict[tuple, float] = field(default_factory=dict, compare=False, repr=False)
    _ways: dict[tuple, tuple[float, MovePath] | None] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def adds_apart(self) -> bool:
        """Tell whether gradients are summed by a pass of their own: not on CUDA, where a matmul of
        half precision adds to float32."""
        return self.wide_grads and self.cluster.device.type != "cuda"

    @property
    def joins_sums(self) -> bool:
        """Tell whether torch.compile makes column sums in a pass over rows: on GPUs alone."""
        return self.cluster.device.type == "cuda"

    def number(self, size: Size) -> float:
        """A size or count at this B and S."""
        if size not in self._numbers:
            self._numbers[size] = number(size, self.sizes)
        return self._numbers[size]

    def rank_graph(self, graph: Graph, placements: dict[str, Placement]) -> RankGraph:
        """Return what no rate changes of a graph, shared by all costs of this mesh, these sizes and
        this type of device."""
        known, device = self.functions.rank_graphs, self.cluster.device.type
        key = id(graph), device, self.mesh, *self.sizes.items()
        found = known.get(key)
        if found is None or found.placements != placements:
            found = known[key] = RankGraph(graph, placements)
        return found

    def full_bytes(self, value: Value) -> float:
        """Bytes of a whole value."""
        if value.shape not in self._elements:
            self._elements[value.shape] = self.number(num_elements(value.shape))
        return self._elements[value.shape] * ITEM_BYTES[value.dtype]

    def local_bytes(self, value: Value, placement: Placement) -> float:
        """Bytes one rank holds of a value."""
        cuts, widened = 1, 1.0
        for size, shards in zip(value.shape, placement.dims, strict=True):
            for shard in shards:
                ranks = self.mesh.size(shard.axis)
                cuts *= ranks
                if shard.halo:
                    widened *= 1 + shard.halo * ranks / self.number(size)
        return self.full_bytes(value) / cuts * widened

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
                for path in move_paths(src, dst, self.mesh)
            ]
            self._ways[key] = min(found, key=lambda way: way[0], default=None)
        return self._ways[key]

    def move_us(self, value: Value, move: Move) -> float:
        """Time of one collective of a redistribution."""
        key = value.shape, value.dtype, move
        if key not in self._moves:
            self._moves[key] = self._move_us(value, move)
        return self._moves[key]

    def _move_us(self, value: Value, move: Move) -> float:
        if move.kind == "slice":
            return SLICE_US
        if move.kind in HALO_KINDS:
            return self._halo_us(value, move)
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

    def _halo_us(self, value: Value, move: Move) -> float:
        """A transfer of the halo between neighbours, the farthest ones, and a copy of the shard."""
        bare, wide = sorted(self.local_bytes(value, p) for p in (move.src, move.dst))
        (axis,), device, per_node = move.axes, self.cluster.device, self.cluster.devices_per_node
        crosses = self.mesh.size(axis) * self.mesh.stride(axis) > per_node
        distance = per_node if crosses else 1
        time = strided_us(self.cluster, "send_recv", wide - bare, 2, distance)
        return time + 2 * wide / device.hbm_bytes_per_s * 1e6 + device.launch_us

    def _packing_us(self, value: Value, side: Placement, axis: str, size: float) -> float:
        """A copy (read and write) where the chunks of a collective are not whole in memory, and one
        that puts mirrored chunks in order."""
        dim, shard = side.shard_dim(axis), side.shard(axis)
        assert dim is not None and shard is not None
        before = self.number(num_elements(value.shape[:dim]))
        strided = before * self.number(local_outer(side, axis, self.mesh)) != 1
        device = self.cluster.device
        copy_us = 2 * size / device.hbm_bytes_per_s * 1e6 + device.launch_us
        return (strided + shard.mirrored) * copy_us

    def op_us(
        self,
        op: Op,
        ins: tuple[Placement, ...],
        outs: tuple[Placement, ...],
        work: OpWork,
    ) -> float:
        """Time of one op with its operands and outputs in the given placements."""
        load = self.load(op, ins, outs, work)
        return 0.0 if load is None else self.load_us(load)

    def load_us(self, load: Load) -> float:
        """Return the time of a load on this device, in us."""
        device, rate = self.cluster.device, self._rates.get(load.rate)
        if rate is None:
            rate = self._rates[load.rate] = load.rate.on(device)
        hbm = device.hbm_bytes_per_s
        time = max(load.flops / rate, load.moved_bytes / hbm) * 1e6 + load.passed_bytes / hbm * 1e6
        return time + load.fixed_us + (device.launch_us if load.launched else 0.0)

    def load(
        self,
        op: Op,
        ins: tuple[Placement, ...],
        outs: tuple[Placement, ...],
        work: OpWork,
    ) -> Load | None:
        """Return what an op asks of a device of this type; None of a view."""
        asked = definition(op)
        if asked.free or asked.source:
            return None
        made = 0.0 if asked.scatters else self._bytes(work.results, outs)
        over = self._pass(work, ins)
        read = work.operands if over is None else _unread(work)
        moved = made + self._bytes(read, ins, without=asked.gathers)
        if asked.gathers is not None:
            moved += made
        if (scores := self.scores(op, work, ins)) is not None:
            flops, rate = scores.flops, Rate(scores.dtype)
            moved += scores.moved_bytes
        else:
            share = self._share(ins + outs) / self._slowest(op, ins)
            flops = self.number(work.flops) / share
            rate = self._rate(op, work, ins, flops)
        launched = any(v is not None for v in work.results)
        passed = self._passed_bytes(op, work, ins) + self._row_bytes(work, ins, over)
        fixed_us = self._fixed_us(op, work, over)
        if rate.attention is not None and rate.attention.ours is not None:
            passed += rate.attention.ours.passed_bytes
            fixed_us += rate.attention.ours.start_us
        return Load(flops, rate, moved, passed, launched, fixed_us)

    def _fixed_us(self, op: Op, work: OpWork, over: Rows | None) -> float:
        """Return what an op takes whatever the size of its rank's part: a matmul on a GPU, whose
        first tiles come in before its flops and whose last ones go out after them, a kernel that
        takes one token after the other, and a column sum in two kernels.

        over: the rows and columns of the pass that it joins.
        """
        asked, on_gpu = definition(op), self.cluster.device.type == "cuda"
        if asked.kind == "matmul" and on_gpu:
            return FILL_US
        if asked.tokens is not None and on_gpu:
            value = work.operands[asked.tokens.operand]
            assert value is not None
            return asked.tokens.us * self.number(value.shape[1])
        return SECOND_US * (work.in_two and self.joins_sums) + JOINED_US * (over is not None)

    def _row_bytes(self, work: OpWork, ins: tuple[Placement, ...], over: Rows | None) -> float:
        """Return what a pass over rows takes beside its reads and writes, as bytes: of a column sum
        that joins it, or of a mean over each row."""
        bytes_each = JOINED_BYTES
        if over is None and work.averaged is not None and self.joins_sums:
            bytes_each, over = MEAN_BYTES, self._rows_and_columns(work.averaged, ins[0])
        if over is None:
            return 0.0
        rows, columns = over
        return rows * columns * bytes_each[columns > SHORT_ROW]

    def _passed_bytes(self, op: Op, work: OpWork, ins: tuple[Placement, ...]) -> float:
        """Return the bytes of the passes that the kernels of an op make beside it."""
        asked = definition(op)
        if asked.passes is None:
            return 0.0
        present = [(v, p) for v, p in zip(work.operands, ins, strict=True) if v is not None]
        elements = [self.local_bytes(v, p) / ITEM_BYTES[v.dtype] for v, p in present]
        return asked.passes(op, [v for v, _ in present], elements)

    def _pass(self, work: OpWork, ins: tuple[Placement, ...]) -> Rows | None:
        """Return the rows and columns of a pass over rows that the column sum of an op joins."""
        if not work.anew or not self.joins_sums:
            return None
        shared = zip(work.anew, ins, strict=True)
        sizes = [self._rows_and_columns(v, p) for v, p in shared if v is not None and v.shape]
        largest = max(sizes, default=(0.0, 0.0))
        return largest if joins_rows(*largest) else None

    def _rows_and_columns(self, value: Value, placement: Placement) -> Rows:
        columns = self._local_size(value, placement, -1)
        return self.local_bytes(value, placement) / ITEM_BYTES[value.dtype] / columns, columns

    def _bytes(
        self,
        values: Sequence[Value | None],
        placements: tuple[Placement, ...],
        without: int | None = None,
    ) -> float:
        """Bytes of the present values on a rank, but for the one at the position `without`."""
        pairs = enumerate(zip(values, placements, strict=True))
        return sum(self.local_bytes(v, p) for k, (v, p) in pairs if v is not None and k != without)

    def implementation(self, op: Op, work: OpWork) -> Implementation | None:
        """Implementation that computes an op on this device."""
        values = [v for v in work.operands if v is not None]
        device, chosen = self.cluster.device.type, self.functions.implementations
        shapes = tuple((v.shape, v.dtype) for v in values)
        key = device, *self.sizes.values(), op.target, op.attrs, shapes
        if key not in chosen:
            chosen[key] = implementation_of(op, values, self.sizes, device)
        return chosen[key]

    def scores(self, op: Op, work: OpWork, ins: tuple[Placement, ...]) -> Scores | None:
        """Price of an attention that holds its scores on this device; None for other ops."""
        asked = definition(op)
        chosen = None if asked.queries is None else self.implementation(op, work)
        if chosen is None or chosen.scores is None:
            return None
        assert asked.queries is not None
        values = [v for v in work.operands if v is not None]
        q, k = values[asked.queries : asked.queries + 2]
        at_q, at_k = ins[asked.queries : asked.queries + 2]
        count = math.prod(self._local_size(q, at_q, dim) for dim in range(3))
        count *= self._local_size(k, at_k, 2)
        dtype = q.dtype if ITEM_BYTES[q.dtype] > 4 else "f32"
        flops = chosen.scores.flops * self.number(q.shape[3]) * count
        stored = count * ITEM_BYTES[dtype]
        return Scores(flops, dtype, chosen.scores.moved * stored, chosen.scores.held * stored)

    def _local_size(self, value: Value, placement: Placement, dim: int) -> float:
        """The size of a dim on one rank, its halo with it."""
        size = self.number(value.shape[dim])
        for shard in placement.dims[dim]:
            size = size / self.mesh.size(shard.axis) + shard.halo
        return size

    def _share(self, placements: tuple[Placement, ...]) -> int:
        """Ranks that an op's work is divided over: along axes that cut some value of it."""
        axes = {s.axis for p in placements for shards in p.dims for s in shards}
        share = 1
        for axis in axes:
            share *= self.mesh.size(axis)
        return share

    def _slowest(self, op: Op, ins: tuple[Placement, ...]) -> float:
        """Work of the slowest rank over the mean: the last of n shards of causal queries sees all
        keys, (2 - 1/n) times what a shard sees on average; mirrored shards see the same."""
        queries = definition(op).queries
        if queries is None or not favours_late_queries(op):
            return 1.0
        shards = (shard for shard in ins[queries].dims[2] if not shard.mirrored)
        return 2.0 - 1.0 / math.prod(self.mesh.size(shard.axis) for shard in shards)

    def _rate(self, op: Op, work: OpWork, ins: tuple[Placement, ...], flops: float) -> Rate:
        asked = definition(op)
        fused = asked.queries is not None and ITEM_BYTES[work.dtype] == 2
        attention = self._attention(op, work, ins, flops) if fused else None
        return Rate(work.dtype, asked.rate_share, attention, self._contracted(op, work, ins))

    def _contracted(self, op: Op, work: OpWork, ins: tuple[Placement, ...]) -> float:
        """Return the contracted dimension of a matmul on a rank, inf where rows are contracted; for
        other ops the one at which rates hold."""
        asked = definition(op)
        if asked.lane != "matmul":
            return READ_DEPTH
        if asked.contracts is None:
            return math.inf
        value = work.operands[asked.contracts]
        assert value is not None
        return self._local_size(value, ins[asked.contracts], -1)

    def _rows_of(self, value: Value, placement: Placement) -> float:
        """Return the rows of all heads on a rank."""
        elements = self.local_bytes(value, placement) / ITEM_BYTES[value.dtype]
        return elements / self.number(value.shape[-1])

    def _attention(
        self, op: Op, work: OpWork, ins: tuple[Placement, ...], flops: float
    ) -> Attention:
        """Return what the rate of a fused attention follows from."""
        asked = definition(op)
        chosen = self.implementation(op, work)
        name = "" if chosen is None else chosen.name
        shape = self._shape(op, work, ins, flops)
        length, seen = shape.length, shape.seen(shape.length, 0.0)
        if name == TRITON:
            alike = seen * (2 - seen / length)
            capped = SOFTCAP_SHARE[asked.backward] if shape.capped else 1.0
            ours = our_kernels(shape, asked.backward)
            return Attention(shape.head_dim, alike, TRITON, asked.backward, capped, ours=ours)
        idle = 1.0
        if name == VENDOR:
            causal = bool(op.attr("causal", True))
            idle = vendor_idle(shape, asked.backward, causal, self._slowest(op, ins))
        return Attention(shape.head_dim, length, "", asked.backward, 1.0, idle)

    def _shape(self, op: Op, work: OpWork, ins: tuple[Placement, ...], flops: float) -> Shape:
        """Return the shape of an attention on a rank."""
        asked = definition(op)
        at = asked.queries
        assert at is not None
        query, key = work.operands[at : at + 2]
        assert query is not None and key is not None
        *_, length, head_dim = (self.number(size) for size in query.shape)
        return Shape(
            self._rows_of(query, ins[at]),
            self._rows_of(key, ins[at + 1]),
            length,
            self.number(key.shape[2]),
            min(float(op.attr("window", 0) or 0), length),
            int(head_dim),
            bool(op.attr("softcap", 0.0)),
            flops / ((10.0 if asked.backward else 4.0) * head_dim),
        )


def _unread(work: OpWork) -> tuple[Value | None, ...]:
    """Return the operands that a column sum reads where it joins a pass over rows: without those
    that the pass has read."""
    return tuple(
        None if again is not None else v for v, again in zip(work.operands, work.anew, strict=True)
    )


def shard_on(rank: int, dim: int, axis: str, outer: Size = 1) -> Placement:
    """Everything whole but `dim`, split over `axis`."""
    return Placement(tuple((Shard(axis, outer),) if k == dim else () for k in range(rank)))
