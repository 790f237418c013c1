"""What capture hands to the planner: graphs and constants, no torch."""

from dataclasses import dataclass
from typing import TypeAlias

from .graph import Constant, Graph
from .lengths import Lengths
from .segment import Segmented

# Of each function of the user, the offset and the line of every instruction that ran.
Ways: TypeAlias = tuple[tuple[str, tuple[tuple[int, int], ...]], ...]

# Tokens of the longest row that a proof runs.
LONGEST_PROVEN = 2048


@dataclass(frozen=True)
class Traced:
    """A captured model: the whole graph, its segments, and one joint graph per unique segment.

    lengths: of the rows that the graph is for. longest_apart: torch traced all but the most tokens
    of a row, for it views a whole table in another way than a part of it; the proof runs them.
    ways: those of the export.
    """

    model: str
    dtype: str
    vocab_size: int
    graph_hash: str
    graph: Graph
    segmented: Segmented
    joints: dict[str, Graph]
    constants: tuple[Constant, ...]
    warnings: tuple[str, ...]
    lengths: Lengths = Lengths()
    longest_apart: bool = False
    ways: Ways = ()

    @property
    def has_router_loss(self) -> bool:
        """Return whether the loss has a part that the load of routers makes, of a whole batch."""
        return len(self.graph.outputs) > 1
