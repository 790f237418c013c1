"""Work of the functions of a piece: what the ops of each do, and which storages they share."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from meshwright.ir.graph import Graph, Op
from meshwright.ir.liveness import last_reads, storage_of
from meshwright.ir.ops.implementation import Implementation
from meshwright.ir.ops.registry import definition
from meshwright.ir.phases import Phases, phases_of

from .graph_work import GraphWork
from .load import RankGraph


class Moment(NamedTuple):
    """What a kernel does to memory: the values that it writes, those that nothing reads after it,
    both in the order in which they are written, and its ops that may take memory for themselves."""

    written: tuple[str, ...]
    left: tuple[str, ...]
    working: tuple[Op, ...]


class PhaseWork(GraphWork):
    """Work of a graph that is one function: no value crosses from forward to backward."""

    def is_backward(self, op: Op) -> bool:
        return False

    @cached_property
    def materialised(self) -> frozenset[str]:
        """Values that are written to memory; the rest live in registers of a fused kernel."""
        return frozenset(
            v.name
            for op in self.graph.ops
            if not definition(op).free
            for v in self.of[op.output.name].results
            if v is not None
        )

    @cached_property
    def kernels(self) -> tuple[tuple[Op, ...], ...]:
        """The ops that run at once, in order: those of a fused kernel, or one alone.

        torch.compile makes fused ops that read the same value one kernel as early as all that they
        read exists: everything that it writes is alive together, beside all that it reads.
        """
        found: list[list[Op]] = []
        made: dict[str, int] = {}  # by value, the kernel that makes it
        reads: dict[int, set[str]] = {}  # of fused kernels, the values from outside
        for op in self.graph.ops:
            names = [n for n in op.inputs if n]
            outer = {n for name in names for n in self._outer[name]}
            ready = max((made.get(n, -1) for n in names), default=-1)
            after = max((made.get(n, -1) for n in outer), default=-1)
            at = len(found)
            if definition(op).fused:
                same = (k for k in reads if k > after and k >= ready and reads[k] & outer)
                at = min(same, default=at)
                reads.setdefault(at, set()).update(outer)
            elif definition(op).free or definition(op).source:
                at = max(ready, 0) if found else at
            if at == len(found):
                found.append([])
            found[at].append(op)
            made.update((v.name, at) for v in op.outputs)
        return tuple(map(tuple, found))

    @cached_property
    def _outer(self) -> dict[str, frozenset[str]]:
        """By value, the storages that a fused kernel with it reads: itself where it is written by
        another op, else what its chain of fused ops reads."""
        found = {i.value.name: frozenset({i.value.name}) for i in self.graph.inputs}
        for op in self.graph.ops:
            read = frozenset[str]().union(*(found[n] for n in op.inputs if n))
            known = definition(op)
            through = known.fused or known.free or known.source
            found |= {v.name: read if through else frozenset({v.name}) for v in op.outputs}
        return found

    @cached_property
    def fused(self) -> dict[str, tuple[bool, ...]]:
        """By the output of an op, which of its values stay in the registers of a fused kernel."""
        return {
            name: tuple(v is None for v in (*work.operands, *work.results, *work.anew))
            for name, work in self.of.items()
        }

    @cached_property
    def lanes(self) -> tuple[tuple[Op, str], ...]:
        """The ops with the kind of time that each takes."""
        return tuple((op, definition(op).lane) for op in self.graph.ops)

    def storage(self, name: str) -> str:
        """The value whose memory `name` is a view of, or itself."""
        return storage_of(name, self.graph)

    def moments(
        self, held: frozenset[str], dropped: frozenset[str], unwritten: frozenset[str]
    ) -> tuple[Moment, ...]:
        """Return what each kernel does to memory, made once.

        held: values that outlive the function. dropped: those that nothing reads once they are
        made. unwritten: those that never lie in memory.
        """
        key = held, dropped, unwritten
        if key not in self._moments:
            self._moments[key] = self._moments_of(*key)
        return self._moments[key]

    @cached_property
    def _moments(self) -> dict[tuple[frozenset[str], ...], tuple[Moment, ...]]:
        return {}

    def _moments_of(
        self, held: frozenset[str], dropped: frozenset[str], unwritten: frozenset[str]
    ) -> tuple[Moment, ...]:
        reads = [
            [self.storage(n) for op in kernel for n in op.inputs if n] for kernel in self.kernels
        ]
        ends = last_reads(reads, map(self.storage, held))
        stored = self.materialised - unwritten
        written, left = [], [list[str]() for _ in range(len(self.kernels) + 1)]
        for index, kernel in enumerate(self.kernels):
            names = tuple(v.name for op in kernel for v in op.outputs if v.name in stored)
            written.append(names)
            for name in names:
                end = index if name in dropped else ends.get(name, index)
                left[max(end, index)].append(name)
        working = (tuple(filter(_takes_memory, kernel)) for kernel in self.kernels)
        return tuple(map(Moment, written, map(tuple, left), working))


def _takes_memory(op: Op) -> bool:
    """Return whether the kernel of an op may take memory for itself."""
    asked = definition(op)
    return asked.workspace is not None or asked.queries is not None


@dataclass(frozen=True)
class PieceFunctions:
    """The phases of a piece with their work, the same at all sizes."""

    phases: Phases
    forward: PhaseWork
    backward: PhaseWork

    @cached_property
    def halves(self) -> tuple[PhaseWork, PhaseWork] | None:
        """The backward's I and W; None where it is not split."""
        halves = self.phases.halves
        if halves is None:
            return None
        return PhaseWork(halves.input_grad), PhaseWork(halves.weight_grad)


def functions_of(graph: Graph, saved: tuple[str, ...]) -> PieceFunctions:
    """Make the functions of a joint graph under its saved values."""
    phases = phases_of(graph, saved)
    return PieceFunctions(phases, PhaseWork(phases.forward), PhaseWork(phases.backward))


@dataclass
class FunctionTable:
    """The functions of pieces, each made once. known: with its graph, which keeps its id.
    implementations: of ops, by the type of a device, B and S, and what an op is. rank_graphs: by
    the id of a graph, the type of a device, the mesh and the sizes."""

    known: dict[tuple[int, tuple[str, ...]], tuple[Graph, PieceFunctions]] = field(
        default_factory=dict
    )
    implementations: dict[tuple, Implementation | None] = field(default_factory=dict)
    rank_graphs: dict[tuple, RankGraph] = field(default_factory=dict)

    def of(self, graph: Graph, saved: tuple[str, ...]) -> PieceFunctions:
        """Return the functions of a joint graph under its saved values."""
        key = id(graph), saved
        if key not in self.known:
            self.known[key] = graph, functions_of(graph, saved)
        return self.known[key][1]
