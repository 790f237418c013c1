"""What one search keeps: results by what they were made from, its schedules and its clock."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from meshwright.ir.mesh import Mesh

from ..clock import Clock
from ..cost.phase_work import FunctionTable
from ..pipeline.schedule_table import ScheduleTable
from ..sharding.chain import Lowered, ShardedModel

Placed: TypeAlias = tuple[Mesh, int]


@dataclass
class Memo:
    """Results of one model, for all problems of a search.

    A table holds one kind of result, under all that it reads of a problem; within a table the key
    is all that the result reads of a candidate. Problems that differ in nothing that is read share
    a table, and one that differs in any of it has its own.
    """

    clock: Clock = field(default_factory=Clock)
    schedules: ScheduleTable = field(default_factory=ScheduleTable)
    functions: FunctionTable = field(default_factory=FunctionTable)
    _tables: dict[tuple, dict] = field(default_factory=dict)
    _pieces: dict[str, list[Lowered]] = field(default_factory=dict)
    _placed: dict[Mesh, list[ShardedModel]] = field(default_factory=dict)

    def table(self, kind: str, *read: Hashable) -> dict:
        """Return the results of a kind; read: what they read of a problem."""
        return self._tables.setdefault((kind, *read), {})

    def shared(self, sharded: ShardedModel) -> ShardedModel:
        """Return a sharded model whose pieces are those that are known, where they are equal: what
        was made of their graphs is found again."""
        lowered = {name: self._known(name, one) for name, one in sharded.lowered.items()}
        return replace(sharded, lowered=lowered)

    def _known(self, name: str, found: Lowered) -> Lowered:
        for one in self._pieces.setdefault(name, []):
            if (one.graph, one.placements) == (found.graph, found.placements):
                return replace(found, graph=one.graph, placements=one.placements)
        self._pieces[name].append(found)
        return found

    def placed(self, mesh: Mesh, sharded: ShardedModel) -> Placed:
        """Return a key of shared placements on a compute mesh, the same for the same ones.

        Clusters that differ in memory alone mostly share theirs, though each is solved at its own
        price of a byte.
        """
        known = self._placed.setdefault(mesh, [])
        found = next((k for k, one in enumerate(known) if _same(one, sharded)), len(known))
        if found == len(known):
            known.append(sharded)
        return mesh, found


def _same(a: ShardedModel, b: ShardedModel) -> bool:
    """Return whether both have the same shared pieces on the same instances."""
    return a.instances == b.instances and all(
        one.graph is b.lowered[name].graph and one.placements is b.lowered[name].placements
        for name, one in a.lowered.items()
    )
