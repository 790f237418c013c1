"""What one pass of a piece costs a rank: time by kind, memory kept and memory passing.

Everything is read off the piece's two functions under its placements, so a plan's text gives the
same numbers as the search that wrote it. Sizes are of one micro-batch on one rank.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from meshwright.ir.dtypes import ITEM_BYTES
from meshwright.ir.graph import Graph, Op
from meshwright.ir.ops.registry import definition
from meshwright.ir.placement import Placement

from .load import Held, Load, RankGraph
from .op_cost import Costs
from .phase_work import PhaseWork, PieceFunctions

# Host's time to issue one copy to or from its memory, of that of a compiled function: 31 us for an
# allocation, two events and the copy (H200, 2026-11-23), and Python around them, of 290 us.
COPY_CALL = 0.14


@dataclass(frozen=True)
class Phase:
    """One function of a piece: us by kind, and the most bytes it has alive beside its inputs.

    copies_us: what copies to or from the host take from it of the device's memory bandwidth.
    call_us: of the host, to issue it; the device waits where it takes less.
    """

    matmul_us: float
    attention_us: float
    pointwise_us: float
    collective_us: float
    peak_bytes: float
    copies_us: float = 0.0
    call_us: float = 0.0

    @cached_property
    def us(self) -> float:
        return max(self.device_us, self.call_us)

    @property
    def device_us(self) -> float:
        compute_us = self.matmul_us + self.attention_us + self.pointwise_us
        return compute_us + self.collective_us + self.copies_us

    @property
    def waiting_us(self) -> float:
        """The device's time that waits for the host."""
        return self.us - self.device_us


NOTHING = Phase(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class SplitWork:
    """A backward in two: I and W. handed_bytes: what I gives to W; adds_late: W adds gradients."""

    input_grad: Phase
    weight_grad: Phase
    handed_bytes: float
    adds_late: bool


@dataclass(frozen=True)
class PieceWork:
    """kept_bytes: handed from forward to backward on the device. entry_bytes, exit_bytes: of the
    values of a rank that come in and go out over the boundaries.

    again_us: the part of the backward that computes forward values again. split: of the schedules
    that run backward in two. away_bytes: handed over in the host's memory; away_us: of their copy,
    each way. added_bytes: of weights whose gradients are added by the matmuls that make them; sums:
    those on a GPU, and these over the rows that each sums.
    runs_backward: False where it is frozen and nothing before it trains.
    """

    forward: Phase
    backward: Phase
    kept_bytes: float
    entry_bytes: float
    exit_bytes: float
    again_us: float
    split: SplitWork | None = None
    away_bytes: float = 0.0
    away_us: float = 0.0
    added_bytes: float = 0.0
    sums: tuple[float, float] = (0.0, 0.0)
    runs_backward: bool = True

    @cached_property
    def sizes(self) -> tuple[float, float, float, float, float]:
        """Return the bytes that a unit has in forward: of its entry, alive; that it keeps, and
        offloads; and alive in backward."""
        ahead, behind = self.forward.peak_bytes, self.backward.peak_bytes
        return self.entry_bytes, ahead, self.kept_bytes, self.away_bytes, behind


@dataclass(frozen=True)
class Priced:
    """Memory and time of the values and ops of a joint graph on a rank, under their placements."""

    graph: Graph
    placements: dict[str, Placement]
    costs: Costs

    @cached_property
    def shared(self) -> RankGraph:
        """Return what costs at other rates have of it, too."""
        return self.costs.rank_graph(self.graph, self.placements)

    def bytes(self, name: str) -> float:
        """Return the bytes that a rank holds of a value."""
        known = self.shared.bytes
        if name not in known:
            known[name] = self.costs.local_bytes(self.graph.values[name], self.placements[name])
        return known[name]

    def us(self, op: Op, work: PhaseWork) -> float:
        """Return the time of an op of a function."""
        if definition(op).collective:
            return op_us(op, work, self.placements, self.costs)
        load = self._load(op, work)
        return 0.0 if load is None else self.costs.load_us(load)

    def lanes_us(self, work: PhaseWork) -> dict[str, float]:
        """Return the time of a function by the unit of the device that it keeps busy."""
        us = dict.fromkeys(("matmul", "attention", "pointwise", "collective"), 0.0)
        moved, loads = self._loads(work)
        for op in moved:
            us["collective"] += op_us(op, work, self.placements, self.costs)
        load_us = self.costs.load_us
        for lane, load in loads:
            us[lane] += load_us(load)
        return us

    def _loads(self, work: PhaseWork) -> tuple[list[Op], list[tuple[str, Load]]]:
        """Return the collectives of a function, and what its other ops ask of a device."""
        known = self.shared.phases
        if id(work) not in known:
            moved = [op for op, lane in work.lanes if lane == "collective"]
            others = [(op, lane) for op, lane in work.lanes if lane != "collective"]
            asked = [(lane, self._load(op, work)) for op, lane in others]
            loads = [(lane, load) for lane, load in asked if load is not None]
            known[id(work)] = work, moved, loads
        return known[id(work)][1:]

    def _load(self, op: Op, work: PhaseWork) -> Load | None:
        """Return what an op asks of a device: the same in any function that fuses the same of its
        values."""
        key = op.output.name, work.fused[op.output.name]
        known = self.shared.loads.get(key)
        if known is None or known[0] is not op:
            ins, outs = _placed(op, self.placements)
            known = op, self.costs.load(op, ins, outs, work.of[op.output.name])
            self.shared.loads[key] = known
        return known[1]

    def workspace(self, op: Op, work: PhaseWork) -> float:
        """Memory that the kernel of an op takes for itself."""
        asked, names = definition(op), [name for name in op.inputs if name]
        if asked.workspace is not None:
            values = [self.graph.values[name] for name in names]
            sizes = [self.bytes(v.name) / ITEM_BYTES[v.dtype] for v in values]
            return asked.workspace(op, values, sizes, self.costs.cluster.device.type)
        ins = tuple(self.placements[name] for name in names)
        scores = self.costs.scores(op, work.of[op.output.name], ins)
        return 0.0 if scores is None else scores.held_bytes


@dataclass
class WorkTable:
    """PieceWork by (graph, what is kept, split or not, what is offloaded) at given costs, each
    computed once. priced: with its graph, which keeps its id."""

    costs: Costs
    known: dict[tuple, PieceWork] = field(default_factory=dict)
    priced: dict[int, Priced] = field(default_factory=dict)

    def of(
        self,
        graph: Graph,
        placements: dict[str, Placement],
        saved: tuple[str, ...],
        split: bool = False,
        offloaded: tuple[str, ...] = (),
    ) -> PieceWork:
        key = (id(graph), saved, split, offloaded)
        if key not in self.known:
            if offloaded:
                staying = self.of(graph, placements, saved, split)
                work = offloading(staying, graph, placements, saved, offloaded, self.costs)
            else:
                priced = self.priced.setdefault(id(graph), Priced(graph, placements, self.costs))
                work = piece_work(priced, saved, split)
            self.known[key] = work
        return self.known[key]


def piece_work(priced: Priced, saved: tuple[str, ...], split: bool = False) -> PieceWork:
    """Times and bytes of a lowered joint graph under its saved values."""
    functions, held = priced.costs.functions.of(priced.graph, saved), _held(priced, saved, split)
    backward = functions.backward
    whole = _phase(backward, priced, held.backward_peak)
    return PieceWork(
        _phase(functions.forward, priced, held.forward_peak),
        whole,
        held.kept,
        held.entry,
        held.exit,
        sum(priced.us(op, backward) for op in functions.phases.again),
        _split_work(functions, priced, held, whole) if split else None,
        added_bytes=held.added,
        sums=held.sums,
        runs_backward=bool(functions.phases.joint.results),
    )


def _held(priced: Priced, saved: tuple[str, ...], split: bool) -> Held:
    """Return the bytes of a graph's functions, counted once for all costs that share it."""
    known, key = priced.shared.held, (saved, split, priced.costs.adds_apart)
    if key not in known:
        known[key] = _count_held(priced, saved, split)
    return known[key]


def _count_held(priced: Priced, saved: tuple[str, ...], split: bool) -> Held:
    size, functions = priced.bytes, priced.costs.functions.of(priced.graph, saved)
    # Gradients that are never written by themselves: the matmuls that make them add them.
    apart = priced.costs.adds_apart
    added = frozenset() if apart else functions.phases.added(split)
    joint = functions.phases.joint
    return Held(
        _forward_peak(functions.forward, priced),
        _backward_peak(functions, priced, added),
        _kept_bytes(functions, size, ()),
        sum(size(v.name) for v in joint.values("activation")),
        sum(map(size, joint.ys)),
        sum(map(size, added)),
        _sums(priced, added),
        *(_halves_held(functions, priced, *functions.halves) if split and functions.halves else ()),
    )


def _sums(priced: Priced, added: frozenset[str]) -> tuple[float, float]:
    """Return the bytes of gradients that matmuls add on a GPU, and these over the rows of each: of
    [O, I] from [rows, O] and [rows, I]."""
    total = per_row = 0.0
    on_gpu = priced.costs.cluster.device.type == "cuda"
    for op in priced.graph.ops if on_gpu else ():
        if op.output.name in added and definition(op).kind == "matmul":
            made, *operands = (_elements(priced, n) for n in (op.output.name, *op.inputs[:2]))
            total += priced.bytes(op.output.name)
            per_row += priced.bytes(op.output.name) / math.sqrt(math.prod(operands) / made)
    return total, per_row


def _elements(priced: Priced, name: str) -> float:
    return priced.bytes(name) / ITEM_BYTES[priced.graph.values[name].dtype]


def offloading(
    work: PieceWork,
    graph: Graph,
    placements: dict[str, Placement],
    saved: tuple[str, ...],
    offloaded: tuple[str, ...],
    costs: Costs,
) -> PieceWork:
    """`work` with some of the saved values in the host's memory. A copy reads or writes the
    device's memory once, beside the compute that it hides behind."""
    size = Priced(graph, placements, costs).bytes
    functions = costs.functions.of(graph, saved)
    away = [name for name in functions.phases.kept if name in offloaded]
    sizes = list(map(size, away))
    cluster, total = costs.cluster, sum(sizes)
    slowed = total / cluster.device.hbm_bytes_per_s * 1e6
    calls_us = COPY_CALL * cluster.device.call_us * len(sizes)

    def copying(phase: Phase) -> Phase:
        return replace(phase, copies_us=slowed, call_us=phase.call_us + calls_us)

    split = work.split
    if split is not None:
        split = replace(split, input_grad=copying(split.input_grad))
    return replace(
        work,
        forward=copying(work.forward),
        backward=copying(work.backward),
        split=split,
        kept_bytes=_kept_bytes(functions, size, away),
        away_bytes=total,
        away_us=len(sizes) * cluster.device.launch_us + total / cluster.host_link_bytes_per_s * 1e6,
    )


def offloadable(
    graph: Graph, placements: dict[str, Placement], saved: tuple[str, ...], costs: Costs
) -> list[tuple[float, str]]:
    """(bytes, name) of kept values that can wait in the host's memory, the largest first: those
    that alone have the memory that they fill."""
    functions = costs.functions.of(graph, saved)
    forward = functions.forward
    homes = {name: forward.storage(name) for name in functions.phases.kept}
    shared = Counter(homes.values())
    given = {i.value.name for i in forward.graph.inputs if i.kind != "activation"}
    size = Priced(graph, placements, costs).bytes
    found = [
        (size(name), name)
        for name, home in homes.items()
        if shared[home] == 1 and home not in given and size(name) == size(home)
    ]
    return sorted(found, key=lambda pair: (-pair[0], pair[1]))


def _split_work(functions: PieceFunctions, priced: Priced, held: Held, whole: Phase) -> SplitWork:
    """The two halves; all in I where the backward is not split."""
    if functions.halves is None:
        return SplitWork(whole, NOTHING, 0.0, False)
    first, second = functions.halves
    early, late = _phase(first, priced, held.first_peak), _phase(second, priced, held.second_peak)
    return SplitWork(early, late, held.handed, True)


def _halves_held(
    functions: PieceFunctions, priced: Priced, first: PhaseWork, second: PhaseWork
) -> tuple[float, float, float]:
    """Return the bytes alive in I, alive in W, and handed from I to W."""
    phases, size = functions.phases, priced.bytes
    dxs, late_inputs = phases.joint.dxs, _inputs(second.graph)
    handed = [n for n in first.graph.outputs if n not in dxs or n in late_inputs]
    dy = sum(size(n) for n in _inputs(first.graph, "grad"))
    peak = dy + _peak(first, priced, held=set(first.graph.outputs), dropped=frozenset())
    grads = frozenset(second.graph.outputs)
    added = frozenset() if priced.costs.adds_apart else phases.added(split=True)
    late = _peak(second, priced, held=set(), dropped=grads, unwritten=added)
    given = _inputs(first.graph, "param", "data", "context")
    storages = {first.storage(name) for name in handed} - given
    return peak, late, sum(size(name) for name in storages)


def _inputs(graph: Graph, *kinds: str) -> set[str]:
    return {i.value.name for i in graph.inputs if not kinds or i.kind in kinds}


def _phase(work: PhaseWork, priced: Priced, peak_bytes: float) -> Phase:
    call_us = priced.costs.cluster.device.call_us
    matmul, attention, pointwise, collective = priced.lanes_us(work).values()
    return Phase(matmul, attention, pointwise, collective, peak_bytes, call_us=call_us)


def op_us(op: Op, work: PhaseWork, placements: dict[str, Placement], costs: Costs) -> float:
    """Time of one op of a function; redistributions by their links."""
    ins, outs = _placed(op, placements)
    if definition(op).collective:
        return costs.redistribute_us(op.output, ins[0], outs[0]) or 0.0
    return costs.op_us(op, ins, outs, work.of[op.output.name])


def _placed(
    op: Op, placements: dict[str, Placement]
) -> tuple[tuple[Placement, ...], tuple[Placement, ...]]:
    """Return the placements of an op's present operands and of its outputs."""
    ins = tuple(placements[n] for n in op.inputs if n)
    return ins, tuple(placements[v.name] for v in op.outputs)


def _forward_peak(work: PhaseWork, priced: Priced) -> float:
    """Most bytes of values that the forward makes, alive at once; outputs live to the end."""
    return _peak(work, priced, held=set(work.graph.outputs), dropped=frozenset())


def _backward_peak(functions: PieceFunctions, priced: Priced, added: frozenset[str]) -> float:
    """Return the most bytes alive at once in the backward, with the incoming gradients.

    Gradients of inputs live on; others are added into their bucket as soon as they are made, or
    where they are.
    """
    phases, work = functions.phases, functions.backward
    gradients = frozenset(phases.joint.made_grads)
    dxs = [n for n in phases.backward.outputs if n not in gradients]
    dys = sum(
        priced.bytes(i.value.name)
        for i in phases.backward.inputs
        if i.kind == "grad" and i.value.name not in phases.kept
    )
    return dys + _peak(work, priced, held=set(dxs), dropped=gradients, unwritten=added)


def _peak(
    work: PhaseWork,
    priced: Priced,
    held: set[str],
    dropped: frozenset[str],
    unwritten: frozenset[str] = frozenset(),
) -> float:
    """Liveness walk over storages that reach memory; views share theirs, inputs are not counted.

    A kernel writes all its results before anything that it reads is given up.
    """
    live = peak = 0.0
    for moment in work.moments(frozenset(held), dropped, unwritten):
        live = _plus(live, map(priced.bytes, moment.written))
        working = (priced.workspace(op, work) for op in moment.working)
        peak = max(peak, live + max(working, default=0.0))
        live -= _plus(0.0, map(priced.bytes, moment.left))
    return peak


def _plus(total: float, sizes: Iterable[float]) -> float:
    """Add in order, as `sum` does before Python 3.12."""
    for size in sizes:
        total += size
    return total


def _kept_bytes(
    functions: PieceFunctions, size: Callable[[str], float], away: Sequence[str]
) -> float:
    """Bytes handed to backward on the device, each storage once; parameters and given values are
    not counted."""
    kept, forward = functions.phases.kept, functions.forward
    given = {i.value.name for i in forward.graph.inputs if i.kind != "activation"}
    storages = {forward.storage(name) for name in kept if name not in away} - given
    return sum(size(name) for name in storages)
