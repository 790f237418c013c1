"""The functions of a unique segment as text: forward, and backward whole or in two."""

import math
from collections.abc import Sequence

from meshwright.ir.graph import Graph, Input, Op
from meshwright.ir.mesh import CONTEXT
from meshwright.ir.phases import Phases, phases_of
from meshwright.ir.plan import Piece, Plan

from .functions import Functions
from .lines import Lines
from .local import Locals, identifier
from .units import Unit, free, grouped
from .writer import Writer

# What is still to be added to buffers: by the value, each parameter's number and its buffer's name.
Pending = dict[str, list[tuple[int, str]]]


def operand_inputs(piece: Piece) -> tuple[Input, ...]:
    """Inputs between x and the parameters: data, then context."""
    return piece.graph.inputs_of("data") + piece.graph.inputs_of("context")


class PieceText:
    """The text of one piece's functions under a plan."""

    def __init__(self, piece: Piece, plan: Plan, local_functions: Functions) -> None:
        self.piece, self.plan, self.local_functions = piece, plan, local_functions
        self.phases = phases_of(piece.graph, piece.saved)
        self.joint, self.graph = self.phases.joint, self.phases.joint.graph
        self.local = Locals.of(piece, plan)
        self.read = {n for op in self.graph.ops for n in op.inputs} | set(self.graph.outputs)
        self.x = self.graph.inputs_of("activation")
        self.operands = operand_inputs(piece)
        self.params = self.graph.inputs_of("param")
        self.saved = _saved(self.phases)
        self.offloads = [k for k, name in enumerate(self.saved) if name in piece.offloaded]
        self.split = self.phases.halves if plan.splits_backward else None
        self.several = plan.boundary_values > 1  # then all that crosses a boundary is a tuple

    @property
    def functions(self) -> tuple[str, ...]:
        """Return what is written, by suffix of the piece's name."""
        return ("forward", *(("input_grad", "weight_grad") if self.split else ("backward",)))

    def write(self, writer: Writer) -> None:
        self._forward(writer)
        for function in self.functions[1:]:
            writer.lines("", "")
            getattr(self, f"_{function}")(writer)

    def _forward(self, writer: Writer) -> None:
        names = [identifier(i.value.name) for i in (*self.x, *self.operands)]
        with writer.block(f"def {self.piece.name}_forward({', '.join(['params', *names])}):"):
            writer.line(f'"""{self._signature()}"""')
            self._unpack(writer, self.params, "params")
            last = ""
            lines = self._lines(self.phases.forward)
            for item in lines.items:
                last = self._line(writer, lines, item, last)
            if self.piece.saved:
                writer.line(f"# saved for backward, a micro-batch: {self._saved_text()}")
            if self.offloads:
                writer.comment(f"in the host's memory meanwhile: {self._offloaded_text()}")
            saved = [identifier(n) for n in self.saved]
            writer.wrapped("saved = (", saved, ",)" if saved else ")")
            writer.line(f"return {self._crossing(self.joint.ys)}, saved")

    def _signature(self) -> str:
        source = f"{self._shapes([i.value.name for i in self.x])} -> " if self.x else ""
        return f"{source}{self._shapes(self.joint.ys)}, saved."

    def _shapes(self, names: Sequence[str]) -> str:
        return ", ".join(f"{identifier(name)} {self._shape(name)}" for name in names)

    def _crossing(self, names: Sequence[str]) -> str:
        """What a function hands over a boundary."""
        if not self.several:
            return identifier(names[0])
        return "(" + ", ".join(map(identifier, names)) + ("," if len(names) == 1 else "") + ")"

    def _shape(self, name: str) -> str:
        sizes = self.local.shape(self.graph.values[name])
        return "[" + ", ".join(self.local.size_text(s) for s in sizes) + "]"

    def _saved_text(self) -> str:
        sizes = [(self.plan.local_bytes(self.piece, n), n) for n in self.piece.saved]
        total = sum(size for size, _ in sizes)
        return f"{_bytes_text(total)} in {len(sizes)} values"

    def _offloaded_text(self) -> str:
        names = [self.saved[k] for k in self.offloads]
        total = sum(self.plan.local_bytes(self.piece, n) for n in names)
        return f"{_bytes_text(total)} in {', '.join(map(identifier, names))}"

    def _unpack(self, writer: Writer, inputs: tuple[Input, ...], source: str) -> None:
        names = [identifier(i.value.name) for i in inputs]
        if names:
            writer.wrapped("(", names, f",) = {source}")

    def _lines(self, function: Graph) -> Lines:
        """The lines of a phase; units are of forward ops, wherever they run."""
        forward = function is self.phases.forward
        again = () if forward else self.phases.recomputed
        joining = {op.output.name for op in function.ops} if forward else again
        items = grouped(self.graph, function.ops, function.outputs, joining)
        return Lines(items, function.outputs, self.local, again=again)

    def _line(
        self,
        writer: Writer,
        lines: Lines,
        item: Op | Unit,
        last: str,
        grad: str = "",
        added: str = "",
    ) -> str:
        """Write an op or unit, after a comment where its origin is not `last`; return the origin.

        grad: where its output `added` is added.
        """
        first = item.ops[0] if isinstance(item, Unit) else item
        note = f"recompute: {first.source}" if first.output.name in lines.again else first.source
        if note and note != last:
            writer.line(f"# {note}")
        if isinstance(item, Unit):
            made, text = list(item.results), self._call(lines, item)
        else:
            made = [v.name for v in item.outputs if v.name != added]
            text = lines.text(item, grad)
        targets = ", ".join(identifier(n) if n in self.read else "_" for n in made)
        writer.call(f"{targets} = " * bool(made) + text)
        return note or last

    def _call(self, lines: Lines, unit: Unit) -> str:
        operands = ", ".join(map(lines.name, unit.operands))
        return f"{self.local_functions.name(unit, self.local)}({operands})"

    def _backward(self, writer: Writer) -> None:
        with writer.block(f"def {self.piece.name}_backward(params, saved, dy, grads):"):
            if not self.joint.results:
                writer.line('"""Nothing: it is frozen, and nothing before it trains."""')
                writer.line("return None")
                return
            writer.line(f'"""{self._given}Adds to grads; returns {self._dx_text}."""')
            self._unpack_saved(writer)
            self._unpack_incoming(writer)
            pending = self._unpack_grads(writer)
            self._gradient_lines(writer, self.phases.backward, pending)
            writer.line(f"return {self._dx}")

    def _input_grad(self, writer: Writer) -> None:
        assert self.split is not None
        with writer.block(f"def {self.piece.name}_input_grad(params, saved, dy):"):
            writer.line(f'"""{self._given}Returns {self._dx_text}, handed."""')
            self._unpack_saved(writer)
            self._unpack_incoming(writer)
            self._gradient_lines(writer, self.split.input_grad, {})
            writer.line("# handed to weight_grad")
            names = [identifier(n) for n in self.split.handed]
            writer.wrapped("handed = (", names, ",)")
            writer.line(f"return {self._dx}, handed")

    def _weight_grad(self, writer: Writer) -> None:
        assert self.split is not None
        with writer.block(f"def {self.piece.name}_weight_grad(handed, grads):"):
            writer.line('"""Adds to grads."""')
            writer.wrapped("(", [identifier(n) for n in self.split.handed], ",) = handed")
            pending = self._unpack_grads(writer)
            self._gradient_lines(writer, self.split.weight_grad, pending)

    @property
    def _given(self) -> str:
        if not self.joint.loss:
            return ""
        if self.graph.inputs_of("grad"):
            return "The loss's own gradient is 1; dy is of what goes out beside it. "
        return "dy is the loss's own 1. "

    @property
    def _dx(self) -> str:
        return self._crossing(self._made_dxs) if self._made_dxs else "None"

    @property
    def _dx_text(self) -> str:
        if len(self._made_dxs) == 1:
            return f"d_x {self._shape(self._made_dxs[0])}"
        return self._shapes(self._made_dxs) or "None"

    @property
    def _made_dxs(self) -> list[str]:
        """Names of the gradients of activation inputs: of all of them, or of none."""
        return [name for name in self.joint.dxs if name]

    def _unpack_saved(self, writer: Writer) -> None:
        self._unpack(writer, self.params, "params")
        if self.saved:
            writer.wrapped("(", [identifier(n) for n in self.saved], ",) = saved")

    def _unpack_incoming(self, writer: Writer) -> None:
        if self.several:
            self._unpack(writer, self.graph.inputs_of("grad"), "dy")

    def _unpack_grads(self, writer: Writer) -> Pending:
        """Gradients' names by the value that is added to each: of a sum of parameters, to all."""
        names = gradient_buffers(self.graph)
        if names:
            writer.wrapped("(", list(names.values()), ",) = grads")
        pending: Pending = {}
        for index, (param, grad) in enumerate(self.joint.grads.items()):
            if grad and param in names:
                pending.setdefault(grad, []).append((index, names[param]))
        return pending

    def _gradient_lines(self, writer: Writer, function: Graph, pending: Pending) -> None:
        """A phase, each parameter gradient added to its bucket as soon as it is there."""
        made = {v.name for op in function.ops for v in op.outputs}
        for name in [n for n in pending if n not in made]:
            self._accumulate(writer, name, pending.pop(name))
        last, lines = "", self._lines(function)
        for item in lines.items:
            results = item.results if isinstance(item, Unit) else [v.name for v in item.outputs]
            added = next((n for n in results if self._adds(n, pending)), "")
            grad = pending.pop(added)[0][1] if added else ""
            last = self._line(writer, lines, item, last, grad, added)
            for name in results:
                self._accumulate(writer, name, pending.pop(name, []))
        assert not pending, pending

    def _adds(self, name: str, pending: Pending) -> bool:
        """Whether the op that makes this value adds it to its gradient as well."""
        fits = name in pending and name in self.phases.added(split=False)
        return fits and self._sharers(name, pending[name][0][0]) == 1

    def _sharers(self, name: str, index: int) -> int:
        """Ranks that hold the whole of a gradient which its bucket sums over them.

        index: of the parameter that it is the gradient of.
        """
        mesh, partial = self.plan.mesh, dict(self.local.placement(name).partial)
        summed = {*mesh.names(CONTEXT), *self._summed_with_bucket(index)}
        return math.prod(mesh.size(axis) for axis in summed if axis not in partial)

    def _accumulate(self, writer: Writer, name: str, grads: list[tuple[int, str]]) -> None:
        own = identifier(name)
        for index, grad in grads:
            sharers = self._sharers(name, index)
            # Not by alpha=: compiled, torch makes one addmm of a matmul and an add, drops alpha.
            share = f"{own}.to({grad}.dtype) / {sharers}" if sharers > 1 else own
            # Compiled for a CPU, torch 2.13 forgets what is written into an input without dims.
            buffer = grad if self.graph.values[name].shape else f"{grad}.view(1)"
            writer.line(f"{buffer}.add_({share})")

    def _summed_with_bucket(self, index: int) -> set[str]:
        """Axes over which the bucket sums this gradient, where some use of it is partial."""
        used = {i.params[index] for i in self.plan.instances if i.piece == self.piece.name}
        entries = (e for b in self.plan.buckets for e in b.entries if e.param in used)
        return {axis for e in entries for axis in e.partial}


def gradient_buffers(graph: Graph) -> dict[str, str]:
    """Return what emitted text calls the buffers that gradients are added to, by parameter."""
    taken = {identifier(name) for name in graph.values}
    found: dict[str, str] = {}
    for item in graph.inputs_of("param"):
        if item.trainable:
            found[item.value.name] = free(f"grad_{identifier(item.value.name)}", taken)
            taken.add(found[item.value.name])
    return found


def _saved(phases: Phases) -> list[str]:
    """Return what forward hands to backward, in order: x, data and context, then saved values."""
    entry = [v.name for v in phases.joint.values("activation")]
    first = [n for n in phases.kept if n in entry]
    return [*first, *phases.given, *(n for n in phases.kept if n not in entry)]


def _bytes_text(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"
