"""Work of the functions of a piece: what the ops of each do, and which storages they share."""

from dataclasses import dataclass, field
from functools import cached_property

from meshwright.ir.graph import Graph, Op
from meshwright.ir.liveness import storage_of
from meshwright.ir.ops.registry import definition
from meshwright.ir.phases import Phases, phases_of

from .graph_work import GraphWork


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

    def storage(self, name: str) -> str:
        """The value whose memory `name` is a view of, or itself."""
        return storage_of(name, self.graph)


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
    """The functions of pieces, each made once. known: with its graph, which keeps its id."""

    known: dict[tuple[int, tuple[str, ...]], tuple[Graph, PieceFunctions]] = field(
        default_factory=dict
    )

    def of(self, graph: Graph, saved: tuple[str, ...]) -> PieceFunctions:
        """Return the functions of a joint graph under its saved values."""
        key = id(graph), saved
        if key not in self.known:
            self.known[key] = graph, functions_of(graph, saved)
        return self.known[key][1]
