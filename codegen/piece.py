"""The two functions of a unique segment: forward and backward, as text."""

from meshwright.ir.graph import Input, Op
from meshwright.ir.plan import Piece, Plan

from .local import Locals, identifier
from .ops import op_text
from .writer import Writer


def piece_functions(writer: Writer, piece: Piece, plan: Plan) -> None:
    """Write `<name>_forward` and `<name>_backward`."""
    _PieceText(piece, plan).write(writer)


def operand_inputs(piece: Piece) -> tuple[Input, ...]:
    """Inputs between x and the parameters: data, then context."""
    return piece.graph.inputs_of("data") + piece.graph.inputs_of("context")


class _PieceText:
    def __init__(self, piece: Piece, plan: Plan) -> None:
        self.piece, self.plan, self.graph = piece, plan, piece.graph
        self.local = Locals.of(piece, plan)
        self.read = {n for op in self.graph.ops for n in op.inputs} | set(self.graph.outputs)
        self.in_backward = False
        self.x = self.graph.inputs_of("activation")
        self.operands = operand_inputs(piece)
        self.params = self.graph.inputs_of("param")
        self.forward_ops = self._needed({self.graph.outputs[0]}, set())
        made = {v.name for op in self.forward_ops for v in op.outputs}
        given = {i.value.name for i in self.graph.inputs} | set(piece.saved)
        grads = {n for n in self.graph.outputs[1:] if n}
        self.backward_ops = self._backward_order(self._needed(grads, given), made)
        read = {n for op in self.backward_ops for n in op.inputs} | grads
        kept = [i.value.name for i in (*self.x, *self.operands)]
        self.saved = [n for n in kept if n in read] + list(piece.saved)
        self.recomputed = [op for op in self.backward_ops if op.output.name in made]

    def _needed(self, wanted: set[str], given: set[str]) -> list[Op]:
        """Ops that make `wanted` from `given`, in the graph's order."""
        wanted = wanted - given
        kept = []
        for op in reversed(self.graph.ops):
            if any(v.name in wanted for v in op.outputs):
                kept.append(op)
                wanted |= set(op.inputs) - given
        return kept[::-1]

    def _backward_order(self, ops: list[Op], forward_made: set[str]) -> list[Op]:
        """Recomputed ops right before their first reader, so that they live shortly."""
        producer = {v.name: op for op in ops for v in op.outputs}
        placed: set[int] = set()
        order: list[Op] = []

        def place(op: Op) -> None:
            if id(op) in placed:
                return
            placed.add(id(op))
            for name in op.inputs:
                if name in producer:
                    place(producer[name])
            order.append(op)

        for op in ops:
            if op.output.name not in forward_made:
                place(op)
        for name in self.graph.outputs[1:]:
            if name in producer:
                place(producer[name])
        return order

    def write(self, writer: Writer) -> None:
        self._forward(writer)
        writer.lines("", "")
        self._backward(writer)

    def _forward(self, writer: Writer) -> None:
        names = [identifier(i.value.name) for i in (*self.x, *self.operands)]
        with writer.block(f"def {self.piece.name}_forward({', '.join(['params', *names])}):"):
            y = self.graph.values[self.graph.outputs[0]]
            writer.line(f'"""{self._signature(y.name)}"""')
            self._unpack(writer, self.params, "params")
            last = ""
            for op in self.forward_ops:
                last = self._op(writer, op, last)
            if self.piece.saved:
                writer.line(f"# saved for backward, a micro-batch: {self._saved_text()}")
            saved = [identifier(n) for n in self.saved]
            writer.wrapped("saved = (", saved, ",)" if saved else ")")
            writer.line(f"return {identifier(y.name)}, saved")

    def _signature(self, output: str) -> str:
        source = f"x {self._shape(self.x[0].value.name)} -> " if self.x else ""
        return f"{source}{identifier(output)} {self._shape(output)}, saved."

    def _shape(self, name: str) -> str:
        sizes = self.local.shape(self.graph.values[name])
        return "[" + ", ".join(self.local.size_text(s) for s in sizes) + "]"

    def _saved_text(self) -> str:
        sizes = [(self.plan.local_bytes(self.piece, n), n) for n in self.piece.saved]
        total = sum(size for size, _ in sizes)
        return f"{_bytes_text(total)} in {len(sizes)} values"

    def _unpack(self, writer: Writer, inputs: tuple[Input, ...], source: str) -> None:
        names = [identifier(i.value.name) for i in inputs]
        if names:
            writer.wrapped("(", names, f",) = {source}")

    def _op(self, writer: Writer, op: Op, last: str, recomputed: bool = False) -> str:
        """One op, after a comment where its origin differs from `last`; returns the origin."""
        source = op.source or ("gradients" if self.in_backward else "")
        note = f"recompute: {source}" if recomputed else source
        if note and note != last:
            writer.line(f"# {note}")
        targets = [identifier(v.name) if v.name in self.read else "_" for v in op.outputs]
        writer.call(f"{', '.join(targets)} = {op_text(op, self.local)}")
        return note or last

    def _backward(self, writer: Writer) -> None:
        is_loss = not self.graph.inputs_of("grad")
        grad_of = [n for n in self.graph.outputs[2:]]
        with writer.block(f"def {self.piece.name}_backward(params, saved, dy, grads):"):
            dx = self.graph.outputs[1]
            result = f"d_x {self._shape(dx)}" if dx else "None"
            given = "dy is the loss's own 1. " if is_loss else ""
            writer.line(f'"""{given}Adds to grads; returns {result}."""')
            self._unpack(writer, self.params, "params")
            if self.saved:
                writer.wrapped("(", [identifier(n) for n in self.saved], ",) = saved")
            grads = [f"grad_{identifier(i.value.name)}" for i in self.params]
            if grads:
                writer.wrapped("(", grads, ",) = grads")
            recomputed = {op.output.name for op in self.recomputed}
            self.in_backward = True
            self._ops_with_grads(writer, recomputed, dict(zip(grad_of, grads, strict=True)))
            writer.line(f"return {identifier(dx) if dx else 'None'}")

    def _ops_with_grads(self, writer: Writer, recomputed: set[str], grads: dict[str, str]) -> None:
        """Ops, each parameter gradient added to its bucket as soon as it is there."""
        pending = dict(grads)
        for name in [n for n in pending if n in {i.value.name for i in self.graph.inputs}]:
            writer.line(f"{pending.pop(name)}.add_({identifier(name)})")
        last = ""
        for op in self.backward_ops:
            last = self._op(writer, op, last, op.output.name in recomputed)
            for value in op.outputs:
                if value.name in pending:
                    writer.line(self._accumulate(value.name, pending.pop(value.name)))
        assert not [n for n in pending if n], pending

    def _accumulate(self, name: str, grad: str) -> str:
        index = self.graph.outputs[2:].index(name)
        whole = self.local.placement(name).partial_op("tp") is None
        if whole and self._summed_over_tp(index):
            return f"{grad}.add_({identifier(name)}, alpha=1 / {self.plan.mesh.size('tp')})"
        return f"{grad}.add_({identifier(name)})"

    def _summed_over_tp(self, index: int) -> bool:
        """Whether the bucket sums this parameter's gradient over tp (another use is partial)."""
        used = {i.params[index] for i in self.plan.instances if i.piece == self.piece.name}
        return any(e.partial for b in self.plan.buckets for e in b.entries if e.param in used)


def _bytes_text(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"
