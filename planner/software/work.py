"""The work of a piece as another stack does it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations

from meshwright.ir.dtypes import ITEM_BYTES
from meshwright.ir.graph import Op
from meshwright.ir.mesh import TENSOR
from meshwright.ir.ops.registry import definition
from meshwright.ir.phases import Joint
from meshwright.ir.placement import Placement, Shard
from meshwright.ir.plan import Piece, Plan
from meshwright.ir.sizes import Shape, num_elements

from ..cost.graph_work import OpWork
from ..cost.op_cost import Costs
from ..cost.phase_work import PhaseWork, functions_of
from ..cost.piece_cost import Phase, PieceWork, Priced, SplitWork, op_us
from ..remat.rules import saved_values
from .float8 import cast_us, with_float8
from .kernels import Library
from .profile import Software

Parts = tuple[PhaseWork, ...]
# Of a result, what one multiprocessor makes at a time: the largest and most efficient tile, of
# either orientation (NVIDIA, matrix multiplication background user's guide).
TILE = (128, 256)


def layer_of(name: str) -> str:
    """Return the name of the layer that an instance is of; "" for one that is in none."""
    return name.rpartition(".")[0]


def inner_pieces(plan: Plan) -> frozenset[str]:
    """Return the names of pieces that another of the same layer follows, wherever they are."""
    names = [(layer_of(i.name), i.piece) for i in plan.instances]
    last = {layer: piece for layer, piece in names if layer}
    ends = {piece for layer, piece in names if last.get(layer, piece) == piece}
    return frozenset(piece for _, piece in names) - ends


_TIMES = ("matmul_us", "attention_us", "pointwise_us", "collective_us", "call_us")


def _halves(split: SplitWork, own: Phase, theirs: Phase) -> SplitWork:
    """Return a backward in two, of which each kind of time changes as that of the whole one does.

    A kind that our whole one has none of falls to the half that comes first.
    """
    first, second = dict[str, float](), dict[str, float]()
    for kind in _TIMES:
        before, after = getattr(own, kind), getattr(theirs, kind)
        times = after / before if before else 0.0
        first[kind] = times * getattr(split.input_grad, kind) if before else after
        second[kind] = times * getattr(split.weight_grad, kind)
    ahead, behind = replace(split.input_grad, **first), replace(split.weight_grad, **second)
    return replace(split, input_grad=ahead, weight_grad=behind)


@dataclass(frozen=True)
class Theirs:
    """A piece, its costs, and the stack that runs it. inner: whether another piece of its layer
    follows it."""

    piece: Piece
    costs: Costs
    software: Software
    inner: bool = False

    def work(self, work: PieceWork) -> PieceWork:
        """Return our work of the piece with all that the stack does otherwise."""
        backward = self._again(work.backward) if self.runs_whole else work.backward
        forward = work.forward
        if self.gives_again:
            backward = self._to_end(backward)
        if self.software.cuts_sequence and self.takes_whole:
            forward, backward = map(self._exchanged, (forward, backward), self.parts)
        ahead, back = map(self._changed, (forward, backward), self.parts)
        if self.software.loss_passes and (losses := self.losses):
            ahead, back = self._whole_loss(ahead, back, losses[0])
        ahead, back = map(self._multiplied, (ahead, back), self.parts)
        halves = work.split and _halves(work.split, work.backward, back)
        return replace(work, forward=ahead, backward=back, split=halves)

    @cached_property
    def _entry_bytes(self) -> float:
        """The bytes of the largest value that enters the piece on a rank."""
        entries = (item.value for item in self.piece.graph.inputs_of("activation"))
        sizes = (self.costs.local_bytes(v, self.piece.placements[v.name]) for v in entries)
        return max(sizes, default=0.0)

    @cached_property
    def takes_whole(self) -> bool:
        """Whether all ranks of a split layer have the whole of what enters the piece."""
        entries = self.piece.graph.inputs_of("activation")
        return all(self.has_whole(item.value.name) for item in entries)

    def has_whole(self, name: str) -> bool:
        """Return whether all ranks of a split layer have the whole of a value."""
        cuts = {shard.axis for dim in self.piece.placements[name].dims for shard in dim}
        return cuts.isdisjoint(self.costs.mesh.names(TENSOR))

    def _exchanged(self, phase: Phase, parts: Parts) -> Phase:
        """A function in which a value as wide as the entry is not reduced over tp ranks, but
        scattered and gathered; and where it is not kept, gathered once more in backward."""
        axes = self.costs.mesh.names(TENSOR)
        again = self.software.gathers_again and parts is self.parts[1]
        more = 0.0
        for part in parts:
            for op in part.graph.ops:
                if (size := self._reduced_bytes(op)) and size >= self._entry_bytes > 0:
                    kinds = "reduce_scatter", *["all_gather"] * (1 + again)
                    more += sum(self.costs.collective_us(kind, size, *axes) for kind in kinds)
                    more -= op_us(op, part, self.piece.placements, self.costs)
        return replace(phase, collective_us=phase.collective_us + more)

    def _summed_us(self, op: Op, work: PhaseWork) -> float:
        """Return the time of a sum over tp ranks, of which each has its share where the sequence is
        cut."""
        size = self._reduced_bytes(op) * (self.software.cuts_sequence and self.takes_whole)
        if size and size >= self._entry_bytes:
            axes = self.costs.mesh.names(TENSOR)
            return self.costs.collective_us("reduce_scatter", size, *axes)
        return op_us(op, work, self.piece.placements, self.costs)

    def _apart_us(self, work: PhaseWork) -> float:
        """Return the time of a function's sums over tp ranks of what no matmul alone has made, as
        wide as what enters the piece."""
        if not self.software.waits_for_sums:
            return 0.0
        makers = self.piece.graph.producer
        return sum(
            self._summed_us(op, work)
            for op in work.graph.ops
            if self._reduced_bytes(op) >= self._entry_bytes > 0
            and definition(makers[op.inputs[0]]).kind not in ("matmul", "loss")
        )

    def _reduced_bytes(self, op: Op) -> float:
        """Return the bytes of a value that an op reduces over tp ranks alone; else 0."""
        if not definition(op).collective or op.attr("kind") != "all_reduce":
            return 0.0
        axes = set(str(op.attr("axis")).split("."))
        if not axes <= set(self.costs.mesh.names(TENSOR)):
            return 0.0
        return self.costs.local_bytes(op.output, self.piece.placements[op.output.name])

    def _multiplied(self, phase: Phase, parts: Parts) -> Phase:
        """A function with matmuls at the stack's rate."""
        idle = sum(map(self._idle_us, parts)) if self.software.waves_of else 0.0
        own = replace(phase, matmul_us=(phase.matmul_us + idle) / self.software.matmul_share)
        if not self.software.float8 or self.losses:
            return own
        casts = sum(cast_us(part, self.piece, self.costs) for part in parts)
        return with_float8(own, casts, self.costs.cluster.device)

    def _idle_us(self, work: PhaseWork) -> float:
        """Return the time in which matmuls leave multiprocessors without a tile."""
        total = 0.0
        for op in work.graph.ops:
            if definition(op).kind == "matmul":
                shape, placed = op.output.shape, self.piece.placements[op.output.name]
                rows, columns = (self._local(shape[:-1], placed.dims[:-1]),
                                 self._local(shape[-1:], placed.dims[-1:]))  # fmt: skip
                filled = filled_share(rows, columns, self.software.waves_of)
                us = op_us(op, work, self.piece.placements, self.costs)
                total += us * (1 / filled - 1)
        return total

    def _local(self, shape: Shape, dims: tuple[tuple[Shard, ...], ...]) -> float:
        """Return the elements of a rank in dims of a value."""
        cuts = math.prod(self.costs.mesh.size(s.axis) for shards in dims for s in shards)
        return self.costs.number(num_elements(shape)) / cuts

    @property
    def runs_whole(self) -> bool:
        """Whether backward runs all of forward again."""
        return self.software.recomputes_whole and self.keeps_nothing

    @property
    def gives_again(self) -> bool:
        """Whether backward computes again what leaves the piece, which another half of a layer
        takes that keeps what enters it alone."""
        of, keeps = self.software, self.piece.saved == saved_values(self.piece.graph, "none")
        return of.keeps_layers and self.inner and not (of.recomputes_whole or keeps)

    @cached_property
    def again_to_end(self) -> tuple[Op, ...]:
        """The ops of forward that what leaves the piece takes, beyond what backward runs anyway.
        What is kept of a sum over ranks ends the way."""
        (forward,), (behind,) = self.parts
        made = {v.name: op for op in forward.graph.ops for v in op.outputs}
        there = {v.name for op in behind.graph.ops for v in op.outputs} | set(self.piece.saved)
        waiting, found = list(Joint(self.piece.graph).ys), dict[str, Op]()
        while waiting:
            name = waiting.pop()
            if name in made and name not in there:
                found[made[name].output.name] = made[name]
                there.update(v.name for v in made[name].outputs)
                waiting += [n for n in made[name].inputs if n]
        return tuple(found.values())

    def _to_end(self, backward: Phase) -> Phase:
        """A backward with the ops in front of it that lead to the piece's end."""
        (forward,), _ = self.parts
        us = dict.fromkeys((f"{lane}_us" for lane in ("matmul", "pointwise", "collective")), 0.0)
        for op in self.again_to_end:
            us[f"{definition(op).lane}_us"] += self._summed_us(op, forward)
        return replace(backward, **{key: getattr(backward, key) + more for key, more in us.items()})

    @cached_property
    def keeps_nothing(self) -> bool:
        """Whether all of it is computed again. A loss is outside of recomputed blocks."""
        every, none = (saved_values(self.piece.graph, rule) for rule in ("none", "all"))
        return every != none == self.piece.saved and not self.losses

    @cached_property
    def parts(self) -> tuple[Parts, Parts]:
        """The functions that forward runs, and those that backward does."""
        if not self.runs_whole:
            return self.parts_of(self.piece.saved)
        forward, backward = self.parts_of(saved_values(self.piece.graph, "none"))
        return forward, (*forward, *backward)

    def parts_of(self, saved: tuple[str, ...]) -> tuple[Parts, Parts]:
        """Return the functions under a set of kept values."""
        found = functions_of(self.piece.graph, saved)
        return (found.forward,), (found.backward,)

    @cached_property
    def losses(self) -> list[Op]:
        return _losses(self.parts_of(self.piece.saved)[0])

    @cached_property
    def library(self) -> Library:
        """The chains of pointwise ops that the stack has kernels for."""
        return Library(self.piece.graph, self.software.library_kernels)

    def _again(self, backward: Phase) -> Phase:
        """A backward with every op of forward in front of it."""
        priced = Priced(self.piece.graph, self.piece.placements, self.costs)
        lanes = [priced.lanes_us(part) for part in self.parts[1]]
        return replace(backward, **{f"{k}_us": sum(us[k] for us in lanes) for k in lanes[0]})

    def _changed(self, phase: Phase, parts: Parts) -> Phase:
        """A function with what the profile says of its kernels and collectives."""
        of = self.software
        pointwise, call = phase.pointwise_us, phase.call_us
        if not of.fused:
            given = self.piece, self.costs, self.library
            pointwise = sum(eager_us(part, *given) for part in parts)
        elif of.joins_sums or of.cuts_sequence:
            pointwise -= sum(map(self._spared_us, parts))
        if not of.fused or of.waits:
            issued = sum(_issued(part, of.fused, self.library) for part in parts)
            call = of.kernel_us * issued
        attention = phase.attention_us / of.attention_share
        if of.attention_passes:
            attention = sum(self._products_us(part) + self._score_us(part) for part in parts)
        exposed = phase.collective_us
        if of.overlaps_tensor:  # matmuls of a piece wait, and none hides more than all of them take
            pieces, apart = self.costs.mesh.count(TENSOR), sum(map(self._apart_us, parts))
            beside = exposed - apart
            hidden = self._multiplied(phase, parts).matmul_us
            exposed = apart + max(beside / pieces, beside - hidden)
        return replace(
            phase,
            attention_us=attention,
            pointwise_us=pointwise + (call if of.waits else 0.0),
            collective_us=exposed,
            call_us=0.0 if of.waits else call,
        )

    def _spared_us(self, work: PhaseWork) -> float:
        """Return the time of fused ops that the stack spares where it joins sums and cuts the
        sequence."""
        there = _passed(work) if self.software.joins_sums else frozenset()
        ranks = self.costs.mesh.count(TENSOR) if self.software.cuts_sequence else 1
        spared = 0.0
        for op in filter(lambda op: definition(op).fused, work.graph.ops):
            asked = work.of[op.output.name]
            if op.output.name in work.sums.apart:
                left = (v if v and v.name not in there else None for v in asked.operands)
                asked = replace(asked, operands=tuple(left))
            ins, outs = self._placed(op)
            us = self.costs.op_us(op, ins, outs, asked)
            whole = op_us(op, work, self.piece.placements, self.costs)
            spared += whole - us / (ranks if self._is_whole(op) else 1)
        return spared

    def _placed(self, op: Op) -> tuple[tuple[Placement, ...], tuple[Placement, ...]]:
        placed = self.piece.placements
        return (
            tuple(placed[name] for name in op.inputs if name),
            tuple(placed[value.name] for value in op.outputs),
        )

    def _is_whole(self, op: Op) -> bool:
        """Whether the values of an op are whole on all ranks of a split layer, or to be summed
        over them, as where several projections give parts of one gradient."""
        names = (*filter(None, op.inputs), *(value.name for value in op.outputs))
        return all(map(self.has_whole, names))

    def _score_us(self, work: PhaseWork) -> float:
        """Return the time of the passes over all scores of a function's attentions. A function may
        compute those of forward again."""
        passes = self.software.attention_passes
        moved = (passes[definition(op).backward] * size for op, size in self.scores(work))
        return sum(moved) / self.costs.cluster.device.hbm_bytes_per_s * 1e6

    def _products_us(self, work: PhaseWork) -> float:
        """Return the time of a function's matmuls of scores, two in forward and four in backward.
        They make all scores, as a mask spares none."""
        total = 0.0
        for op, size in self.scores(work):
            at = definition(op).queries
            assert at is not None
            queries = self.piece.graph.values[op.inputs[at]]
            head = self.costs.number(queries.shape[-1])
            odd = self.software.odd_heads_f32 and head % 8
            rate = self.costs.cluster.device.matmul_rate("f32" if odd else queries.dtype)
            flops = 4 * (1 + definition(op).backward) * head * size / ITEM_BYTES[queries.dtype]
            total += flops / rate * 1e6
        return total

    def scores(self, work: PhaseWork) -> Iterator[tuple[Op, float]]:
        """Give a function's attentions, each with the bytes of its scores [B, H, S, K] in the dtype
        of the queries."""
        for op in work.graph.ops:
            if (at := definition(op).queries) is None:
                continue
            queries, keys = (self.piece.graph.values[name] for name in op.inputs[at : at + 2])
            placement = self.piece.placements[queries.name]
            each = self.costs.local_bytes(queries, placement) / queries.shape[-1]
            yield op, each * self.costs.number(keys.shape[-2])

    def _whole_loss(self, forward: Phase, backward: Phase, loss: Op) -> tuple[Phase, Phase]:
        """One matmul for the logits, two backward, and the loss's passes over all of them."""
        byte_us = 1e6 / self.costs.cluster.device.hbm_bytes_per_s
        pass_us = self.logits_bytes(loss) * byte_us
        ours = [
            sum(op_us(op, part, self.piece.placements, self.costs) for op in _losses((part,)))
            for (part,) in self.parts
        ]
        # Our statistics read a rank's logits once.
        matmul_us = ours[0] - self._logits_bytes(loss) / self.costs.mesh.num_devices * byte_us
        given = (forward, backward), ours, (matmul_us, 2 * matmul_us), self.software.loss_passes
        ahead, back = (
            replace(
                phase,
                matmul_us=phase.matmul_us - own + other,
                pointwise_us=phase.pointwise_us + count * pass_us,
            )
            for phase, own, other, count in zip(*given, strict=True)
        )
        return replace(ahead, collective_us=ahead.collective_us + self._gather_us(loss)), back

    def _gather_us(self, loss: Op) -> float:
        """Return the time in which a tp rank gathers all logits: features come in shares, which a
        copy puts in order."""
        axes, size = self.costs.mesh.names(TENSOR), self.logits_bytes(loss)
        if not (self.software.gathers_logits and self.costs.mesh.count(TENSOR) > 1):
            return 0.0
        copy_us = 2 * size / self.costs.cluster.device.hbm_bytes_per_s * 1e6
        return self.costs.collective_us("all_gather", size, *axes) + copy_us

    def logits_bytes(self, loss: Op) -> float:
        """Return the bytes of the logits [B, S, V] that a rank has for the loss, in the dtype of
        what they are made of."""
        mesh = self.costs.mesh
        held = mesh.count(TENSOR) if self.software.gathers_logits else 1
        return self._logits_bytes(loss) * held / mesh.num_devices

    def _logits_bytes(self, loss: Op) -> float:
        """Return the bytes of all logits, of all ranks of a layer."""
        x, weight = (self.piece.graph.values[name] for name in loss.inputs[:2])
        shape = (*x.shape[:-1], weight.shape[0])
        return self.costs.number(num_elements(shape)) * ITEM_BYTES[x.dtype]


def filled_share(rows: float, columns: float, processors: int) -> float:
    """Return the share of the waves of a matmul's tiles that its result fills."""
    waves = min(
        math.ceil(math.ceil(rows / high) * math.ceil(columns / wide) / processors)
        for high, wide in permutations(TILE)
    )
    return rows * columns / (waves * processors * math.prod(TILE))


def eager_us(work: PhaseWork, piece: Piece, costs: Costs, library: Library) -> float:
    """Return the time of pointwise ops and reductions of a function, each a kernel of its own but
    for those that a library has one for."""
    total = 0.0
    for kernel in library.kernels(work):
        reads, writes = (
            tuple(piece.graph.values[name] for name in names)
            for names in (kernel.reads, kernel.writes)
        )
        ins, outs = (tuple(piece.placements[v.name] for v in vs) for vs in (reads, writes))
        asked = OpWork(0, kernel.op.output.dtype, reads, writes)
        total += costs.op_us(kernel.op, ins, outs, asked)
    return total


def _issued(work: PhaseWork, fused: bool, library: Library) -> int:
    """Return the kernels that a host issues for a function."""
    if not fused:
        others = (op for op in work.graph.ops if not definition(op).fused)
        apart = sum(not (definition(op).free or definition(op).source) for op in others)
        return apart + sum(1 for _ in library.kernels(work))
    return sum(
        any(not (definition(op).free or definition(op).source) for op in kernel)
        for kernel in work.kernels
    )


def _passed(work: PhaseWork) -> frozenset[str]:
    """Return what a function's pointwise ops and sums over features read or make."""
    rows = (op for op in work.graph.ops if definition(op).fused)
    rows = (op for op in rows if op.output.name not in work.sums.apart)
    return frozenset(name for op in rows for name in (*op.inputs, *(v.name for v in op.outputs)))


def _losses(parts: Parts) -> list[Op]:
    return [op for part in parts for op in part.graph.ops if definition(op).kind == "loss"]
