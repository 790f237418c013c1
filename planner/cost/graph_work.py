"""What the ops of a joint graph do, whatever their placements: flops, and the values they move."""

from dataclasses import dataclass, replace
from functools import cached_property

from meshwright.ir.dtypes import FLOATS, ITEM_BYTES
from meshwright.ir.graph import Graph, Op, Value
from meshwright.ir.ops.questions import flops, passing
from meshwright.ir.ops.reduction import reduced_dims
from meshwright.ir.ops.registry import definition
from meshwright.ir.phases import forward_ops
from meshwright.ir.sizes import Size

from .column_sums import ColumnSums


@dataclass(frozen=True)
class OpWork:
    """The work of an op whatever its placement: flops, and the values it moves (None: fused away).

    operands follow the present operands in order, results the outputs. dtype: of the matrix unit.
    anew: those of `operands` that a column sum reads only where it is a kernel of its own.
    averaged: the value that an op makes means of, one a row. in_two: a column sum, of which a GPU
    makes partial sums first.
    """

    flops: Size
    dtype: str
    operands: tuple[Value | None, ...]
    results: tuple[Value | None, ...]
    anew: tuple[Value | None, ...] = ()
    averaged: Value | None = None
    in_two: bool = False


@dataclass(frozen=True)
class GraphWork:
    """Work of every op of a joint graph, whose fused kernels end where backward begins."""

    graph: Graph

    @cached_property
    def made_forward(self) -> frozenset[str]:
        """Names that exist once forward is done: its values, and the activation input."""
        made = {v.name for op in forward_ops(self.graph) for v in op.outputs}
        return frozenset(made | {i.value.name for i in self.graph.inputs_of("activation")})

    def is_backward(self, op: Op) -> bool:
        return op.output.name not in self.made_forward

    @cached_property
    def held(self) -> frozenset[str]:
        """Forward values that backward reads, each storage once (the first of a chain of views)."""
        read = {n for op in self.graph.ops if self.is_backward(op) for n in op.inputs}
        read &= self.made_forward - passing(self.graph)
        return frozenset(name for name in read if not self._views(name) & read)

    def _views(self, name: str) -> set[str]:
        """The values whose storage `name` is a view of."""
        found: set[str] = set()
        while (op := self.graph.producer.get(name)) is not None and definition(op).free:
            name = op.inputs[0]
            found.add(name)
        return found

    @cached_property
    def of(self) -> dict[str, OpWork]:
        """Work by the name of the op's first output."""
        seen: set[tuple[str, bool, str]] = set()
        found = {op.output.name: self._work(op, seen) for op in self.graph.ops}
        for name, column_sum in self.sums.apart.items():
            found[name] = replace(found[name], in_two=name == column_sum)
            if column_sum in self.sums.joined:
                found[name] = replace(found[name], anew=self._anew(name, found[name], seen))
        return found

    def _anew(
        self, name: str, work: OpWork, seen: set[tuple[str, bool, str]]
    ) -> tuple[Value | None, ...]:
        """The operands of a column sum's op that the pass over rows has, too."""
        backward = self.is_backward(self.graph.producer[name])
        there = {key[0] for key in seen if key[1:] == (backward, "")}
        for op in self.graph.ops:
            if definition(op).fused and self.is_backward(op) == backward:
                there.update(v.name for v in op.outputs)
        return tuple(v if v is not None and v.name in there else None for v in work.operands)

    @cached_property
    def sums(self) -> ColumnSums:
        """The column sums, kernels of their own beside sums over the last dim or one with them."""
        return ColumnSums(self.graph, self.is_backward)

    def _work(self, op: Op, seen: set[tuple[str, bool, str]]) -> OpWork:
        values = [self.graph.values[n] for n in op.inputs if n]
        floats = [v.dtype for v in values if v.dtype in FLOATS] or [op.output.dtype]
        dtype = min(floats, key=lambda name: ITEM_BYTES[name])
        if not definition(op).fused:
            return OpWork(flops(op, self.graph), dtype, tuple(values), op.outputs)
        operands = tuple(v if self._first_read(v.name, op, seen) else None for v in values)
        results = tuple(v if self._leaves(v.name, op) else None for v in op.outputs)
        return OpWork(0, dtype, operands, results, averaged=self._averaged(op))

    def _averaged(self, op: Op) -> Value | None:
        value = self.graph.values[op.inputs[0]] if op.inputs else None
        if value is None or not definition(op).averages_dims:
            return None
        rank = len(value.shape)
        return value if reduced_dims(op, rank) == {rank - 1} else None

    def _first_read(self, name: str, op: Op, seen: set[tuple[str, bool, str]]) -> bool:
        """Whether a fused op is the first of its phase to read a value made outside the chain."""
        apart = self.sums.apart.get(op.output.name, "")
        key = (name, self.is_backward(op), apart)
        if key in seen:
            return False
        seen.add(key)
        source = self.graph.producer.get(name)
        while source is not None and definition(source).free:
            source = self.graph.producer.get(source.inputs[0])
        if source is None:
            return True
        made = definition(source)
        if apart and not made.source:
            return self.sums.apart.get(source.output.name, "") != apart
        return not (made.fused or made.source) or self.is_backward(source) != key[1]

    def _leaves(self, name: str, op: Op) -> bool:
        """Whether a fused op's result is written: an output, or read beyond the chain or phase."""
        if name in self.graph.outputs:
            return True
        return any(
            self._leaves(user.output.name, op)
            if definition(user).free
            else not definition(user).fused or self.is_backward(user) != self.is_backward(op)
            for user in self.graph.users[name]
        )
