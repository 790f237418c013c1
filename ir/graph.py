"""Graph, Op and Value: the logical program, frozen, without mesh or device.

A graph is a list of inputs, a list of ops in execution order and a list of output names. Every
op names one target (see ops/), its operands by value name, typed attributes, and the values
it makes. Text is identity: `parse_graph(format_graph(g)) == g` (see text/graph_text.py).
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from .errors import VerifyError
from .sizes import Shape

# int, float, bool, str, None, a size, or a tuple of them; whoever reads one knows which.
Attr: TypeAlias = Any
# Hash, dtype, shape, base64 of the raw bytes.
Constant: TypeAlias = tuple[str, str, Shape, str]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor: logical (global within one micro-batch) shape, short dtype name."""

    name: str
    dtype: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. `inputs` holds value names; "" stands for an absent optional operand."""

    target: str
    inputs: tuple[str, ...]
    outputs: tuple[Value, ...]
    attrs: tuple[tuple[str, Attr], ...] = ()
    source: str = ""

    def attr(self, name: str, default: Attr = None) -> Attr:
        return dict(self.attrs).get(name, default)

    @property
    def output(self) -> Value:
        return self.outputs[0]


@dataclass(frozen=True, slots=True)
class Input:
    """A graph input.

    kind: "data" (tokens, labels, denominator), "param", "constant", "context" (depends on no
    parameter), "activation" (the cut value), "grad" (its gradient). `ref` is the parameter's
    logical name, the constant's hash, or the name of the value in the whole model. `init` is a
    parameter's initial distribution, e.g. "normal(0.0, 0.02)". `trainable`: a parameter that is
    not is frozen, it has no gradient.
    """

    value: Value
    kind: str
    ref: str = ""
    init: str = ""
    trainable: bool = True


@dataclass(frozen=True)
class Graph:
    name: str
    inputs: tuple[Input, ...]
    ops: tuple[Op, ...]
    outputs: tuple[str, ...]

    @cached_property
    def values(self) -> dict[str, Value]:
        """Every value by name, inputs first, in order of definition."""
        found = {i.value.name: i.value for i in self.inputs}
        found.update((v.name, v) for op in self.ops for v in op.outputs)
        return found

    @cached_property
    def producer(self) -> dict[str, Op]:
        return {v.name: op for op in self.ops for v in op.outputs}

    @cached_property
    def users(self) -> dict[str, tuple[Op, ...]]:
        found: dict[str, list[Op]] = {name: [] for name in self.values}
        for op in self.ops:
            for name in dict.fromkeys(op.inputs):
                if name:
                    found[name].append(op)
        return {name: tuple(ops) for name, ops in found.items()}

    def inputs_of(self, kind: str) -> tuple[Input, ...]:
        return tuple(i for i in self.inputs if i.kind == kind)


def verify(graph: Graph) -> Graph:
    """The same graph, checked: single definitions, operands defined before use, outputs known."""
    seen: set[str] = set()
    for item in graph.inputs:
        _define(graph, item.value.name, seen, "input")
    for index, op in enumerate(graph.ops):
        for name in op.inputs:
            if name and name not in seen:
                raise VerifyError(f"{_where(graph, index)}: operand %{name} is not defined before")
        for value in op.outputs:
            _define(graph, value.name, seen, _where(graph, index))
    for name in graph.outputs:
        if name and name not in seen:
            raise VerifyError(f"graph {graph.name}: output %{name} is not defined")
    return graph


def _define(graph: Graph, name: str, seen: set[str], where: str) -> None:
    if name in seen:
        raise VerifyError(f"graph {graph.name}: {where} defines %{name} a second time")
    seen.add(name)


def _where(graph: Graph, index: int) -> str:
    near = graph.ops[max(0, index - 2) : index + 3]
    lines = "\n".join(f"    {', '.join(v.name for v in o.outputs)} = {o.target}" for o in near)
    op = graph.ops[index]
    return f"graph {graph.name}, op {index} {op.target} ({op.source or 'no source'})\n{lines}\n"


def prune(graph: Graph) -> Graph:
    """The graph without ops whose results nobody reads."""
    needed = set(graph.outputs)
    kept: list[Op] = []
    for op in reversed(graph.ops):
        if any(v.name in needed for v in op.outputs):
            kept.append(op)
            needed.update(op.inputs)
    return Graph(graph.name, graph.inputs, tuple(reversed(kept)), graph.outputs)


def text_hash(text: str) -> str:
    """First 16 hex digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
