"""Column sums of a graph, over all dims but the last, and which of them join a pass over rows.

A norm's backward sums over the features of a row for dx, and over rows for its weight's gradient.
torch.compile writes a kernel for each, the second of which reads anew what both need. On a GPU it
makes one kernel of both (Inductor's mix-order reduction) where the column sum waits for no row sum
of its own function: a backward that computes a norm's statistics again waits for those.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from meshwright.ir.graph import Graph, Op
from meshwright.ir.ops.reduction import reduced_dims
from meshwright.ir.ops.registry import definition
from meshwright.ir.sizes import Shape, num_elements

# What a pass over rows takes on a GPU beside its reads and writes, in bytes of an element at the
# rate of a copy: where a column sum joins it, for rows of at most SHORT_ROW columns and for longer
# ones; and where it makes a mean, of longer rows alone, which are padded to a power of two.
# SECOND_US: of the kernel that adds the partial sums of a column sum; JOINED_US: what that takes
# more of one that joins (kernel tables of seven models of 768 to 3,072 features, an H200,
# 2026-11-29: benchmarks/README.md).
SHORT_ROW, JOINED_BYTES, MEAN_BYTES = 1024, (1.3, 3.4), (0.0, 1.3)
SECOND_US, JOINED_US = 3.0, 5.0


def joins_rows(rows: float, columns: float) -> bool:
    """Return whether torch.compile makes column sums of [rows, columns] in a pass over the rows
    (MixOrderReduction.can_fuse of torch/_inductor/scheduler.py, torch 2.11 to 2.13)."""
    return rows >= max(4096, 2 * columns) and columns <= 16384 and rows * columns >= 5 * 2**20


@dataclass(frozen=True)
class Chain:
    """What leads to a value through fused ops of one function: the values read from outside, and
    the row sums on the way."""

    reads: frozenset[str] = frozenset()
    row_sums: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ColumnSums:
    """Column sums of a graph. backward: tells whether an op runs in the graph's second function."""

    graph: Graph
    backward: Callable[[Op], bool]

    @cached_property
    def apart(self) -> dict[str, str]:
        """The column sum, by its name, and by that of the op that only it reads."""
        found: dict[str, str] = {}
        for op in self.graph.ops:
            if not definition(op).sums_dims or self._is_row_sum(op):
                continue
            found[op.output.name] = op.output.name
            source = self.graph.producer.get(op.inputs[0])
            if source and definition(source).fused and len(self.graph.users[op.inputs[0]]) == 1:
                found[source.output.name] = op.output.name
        return found

    @cached_property
    def joined(self) -> frozenset[str]:
        """Column sums that a pass over rows makes beside its row sums, where it is large enough."""
        return frozenset(name for name in set(self.apart.values()) if self._joins(name))

    @cached_property
    def waits_for(self) -> dict[str, frozenset[str]]:
        """By column sum, the row sums of its function that it waits for."""
        return {name: self._chains[name].row_sums for name in set(self.apart.values())}

    def _joins(self, name: str) -> bool:
        op = self.graph.producer[name]
        summed = self.graph.values[op.inputs[0]]
        reads, size = self._chains[name].reads, num_elements(summed.shape)
        if self.waits_for[name] or self._reduced(op) != set(range(len(summed.shape) - 1)):
            return False
        whole = {n for n in reads if num_elements(self.graph.values[n].shape) == size}
        return any(
            whole & self._chains[row.output.name].reads
            for row, shape in self._row_sums
            if self.backward(row) == self.backward(op)
            and shape[-1] == summed.shape[-1]
            and num_elements(shape) == size
        )

    @cached_property
    def _row_sums(self) -> tuple[tuple[Op, Shape], ...]:
        """The sums over the last dim alone, and the shape of what each reduces."""
        found = (op for op in self.graph.ops if self._is_row_sum(op))
        shapes = ((op, self.graph.values[op.inputs[0]].shape) for op in found)
        return tuple((op, s) for op, s in shapes if reduced_dims(op, len(s)) == {len(s) - 1})

    def _is_row_sum(self, op: Op) -> bool:
        """Whether an op reduces the last dim."""
        rank = len(self.graph.values[op.inputs[0]].shape) if op.inputs else 0
        return definition(op).kind == "reduction" and rank - 1 in self._reduced(op)

    def _reduced(self, op: Op) -> set[int]:
        return reduced_dims(op, len(self.graph.values[op.inputs[0]].shape))

    @cached_property
    def _chains(self) -> dict[str, Chain]:
        found: dict[str, Chain] = {}
        for op in self.graph.ops:
            if definition(op).fused or definition(op).free:
                parts = [self._part(name, op, found) for name in op.inputs if name]
                sums = {op.output.name} if self._is_row_sum(op) else set()
                chain = Chain(
                    frozenset[str]().union(*(p.reads for p in parts)),
                    frozenset(sums).union(*(p.row_sums for p in parts)),
                )
                found |= {v.name: chain for v in op.outputs}
        return found

    def _part(self, name: str, op: Op, found: dict[str, Chain]) -> Chain:
        source = self.graph.producer.get(name)
        if source is None or name not in found or self.backward(source) != self.backward(op):
            return Chain(frozenset({name}))
        return found[name]
