"""What one search keeps: results by what they were made from, its schedules and its clock."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from ..clock import Clock
from ..cost.phase_work import FunctionTable
from ..pipeline.schedule_table import ScheduleTable


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

    def table(self, kind: str, *read: Hashable) -> dict:
        """Return the results of a kind; read: what they read of a problem."""
        return self._tables.setdefault((kind, *read), {})
