"""Work of the functions of a piece: what the ops of each do, and which storages they share."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

from meshwright.ir.graph import Graph, Op
from meshwright.ir.ops.registry import definition
from meshwright.ir.phases import Phases, phases_of

from .op_cost import GraphWork


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
        while (op := self.graph.producer.get(name)) is not None and definition(op).free:
            name = op.inputs[0]
        return name


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


class _Same:
    """A key by identity, which keeps its object."""

    def __init__(self, item: Graph) -> None:
        self.item = item

    def __hash__(self) -> int:
        return id(self.item)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.item is other.item


def functions_of(graph: Graph, saved: tuple[str, ...]) -> PieceFunctions:
    """The functions of a joint graph under its saved values; made once."""
    return _functions_of(_Same(graph), saved)


@lru_cache(maxsize=1024)
def _functions_of(graph: _Same, saved: tuple[str, ...]) -> PieceFunctions:
    phases = phases_of(graph.item, saved)
    return PieceFunctions(phases, PhaseWork(phases.forward), PhaseWork(phases.backward))
