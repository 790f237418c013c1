"""Segments: cut the graph where one parameter-dependent value is live, or a few.

Walk the ops that depend on parameters, in order. After an op, if a single such value is still to
be read and it forks (two or more readers: the residual stream), cut there. A cast of that value
does not count as a reader of its own: what reads the cast reads the value. Values that depend on
no parameter and no token (masks, rotary tables) are *context*: computed once, given to every
segment that reads them. Equal pieces (by op, shape, attributes and wiring) are one unique segment
with several instances; frozen and trained parameters differ, and so do segments whose input needs a
gradient and those whose does not.
"""

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeAlias

from .dtypes import FLOATS
from .graph import Graph, Input, Op, Value, prune, text_hash, verify
from .liveness import live_after
from .ops.questions import draws_from, first_draw
from .ops.registry import definition
from .text.graph_text import format_graph

# The most values that cross a cut.
MAX_BOUNDARY = 4

# By the id of an op the values that cross a cut behind it, the op's own first.
Points: TypeAlias = dict[int, tuple[str, ...]]


@dataclass(frozen=True)
class Segment:
    """A unique piece of the model: its forward graph with names of its own.

    Inputs: the activations that cross the cut before it (none for the first piece), data, context,
    params in order of use. needs_dx: whether something before it trains, so that its activations
    have gradients.
    """

    name: str
    graph: Graph
    needs_dx: bool = True

    @property
    def wanted(self) -> tuple[Input, ...]:
        """The inputs that have a gradient."""
        return tuple(
            i
            for i in self.graph.inputs
            if (i.kind == "param" and i.trainable) or (i.kind == "activation" and self.needs_dx)
        )


@dataclass(frozen=True, slots=True)
class Instance:
    """One use of a segment: parameters by logical name, in the order of the segment's inputs.

    first_draw: number of its first dropout in the whole model; the segment counts its own from 0.
    """

    segment: str
    params: tuple[str, ...]
    context: tuple[str, ...]
    first_draw: int = 0


@dataclass(frozen=True)
class Segmented:
    context: Graph
    segments: tuple[Segment, ...]
    instances: tuple[Instance, ...]

    def segment(self, name: str) -> Segment:
        return next(s for s in self.segments if s.name == name)


def segment(graph: Graph) -> Segmented:
    """Cut a captured graph into a chain of segment instances."""
    graph = _without_repeats(graph)
    dependent = _dependent_on_params(graph)
    context_ops, chain_ops = _split_context(graph, dependent)
    segments: dict[tuple[str, bool], Segment] = {}
    instances = []
    trains = False  # whether an earlier piece does
    names: set[str] = set()
    for span in _cut(graph, chain_ops, dependent):
        piece, params, context = _piece_graph(graph, span, dependent)
        first = first_draw(piece)
        piece = draws_from(piece, first)
        key = _structure(piece), trains
        if key not in segments:
            name = _segment_name(piece, params)
            name = _free(name, names)
            names.add(name)
            segments[key] = Segment(name, _renamed(piece, name), trains)
        instances.append(Instance(segments[key].name, params, context, first))
        trains = trains or any(i.trainable for i in piece.inputs_of("param"))
    wanted = dict.fromkeys(name for i in instances for name in i.context)
    return Segmented(
        _context_graph(graph, context_ops, tuple(wanted)),
        tuple(segments.values()),
        tuple(instances),
    )


def _without_repeats(graph: Graph) -> Graph:
    """Equal constants are one, and equal ops on constants alone are one op: each layer of some
    models keeps its own table, or makes its own mask or rotary view, which would make its segment
    differ from the others."""
    varying = {i.value.name for i in graph.inputs if i.kind != "constant"}
    same_as = {i.ref: i.value.name for i in reversed(graph.inputs_of("constant"))}
    names = {i.value.name: same_as[i.ref] for i in graph.inputs_of("constant")}
    first: dict[tuple, Op] = {}
    kept = []
    for op in graph.ops:
        op = replace(op, inputs=tuple(names.get(n, n) for n in op.inputs))
        if any(n in varying for n in op.inputs):
            varying.update(v.name for v in op.outputs)
            kept.append(op)
            continue
        same = first.setdefault((op.target, op.inputs, op.attrs), op)
        if same is op:
            kept.append(op)
        names.update((v.name, w.name) for v, w in zip(op.outputs, same.outputs, strict=True))
    outputs = tuple(names.get(n, n) for n in graph.outputs)
    inputs = tuple(i for i in graph.inputs if names.get(i.value.name, i.value.name) == i.value.name)
    return Graph(graph.name, inputs, tuple(kept), outputs)


def _dependent_on_params(graph: Graph) -> set[str]:
    """Names of values computed from parameters (not the parameters themselves)."""
    params = {i.value.name for i in graph.inputs_of("param")}
    found: set[str] = set()
    for op in graph.ops:
        if any(name in params or name in found for name in op.inputs):
            found.update(v.name for v in op.outputs)
    return found


def _split_context(graph: Graph, dependent: set[str]) -> tuple[list[Op], list[Op]]:
    """Ops that depend on constants alone, and the others (tokens make an op part of the chain)."""
    varying = {i.value.name for i in graph.inputs_of("data")} | dependent
    context, chain = [], []
    for op in graph.ops:
        if any(name in varying for name in op.inputs) or op.outputs[0].name in dependent:
            varying.update(v.name for v in op.outputs)
            chain.append(op)
        else:
            context.append(op)
    return context, chain


@dataclass(frozen=True)
class _Span:
    """Ops that follow each other, what comes in over the cut before them, what goes out after."""

    ops: tuple[Op, ...]
    entries: tuple[str, ...]
    exits: tuple[str, ...]


def _cut(graph: Graph, ops: list[Op], dependent: set[str]) -> list[_Span]:
    """The spans of a chain: cut where one value is live, then where a few are and spans repeat."""
    live = live_after(ops, graph.outputs, dependent)
    places = {id(op): index for index, op in enumerate(ops)}
    points = {
        id(op): (op.output.name, *(n for n in live[places[id(op)]] if n != op.output.name))
        for op in ops[:-1]
        if op.output.name in live[places[id(op)]] and _forks(graph, op.output.name)
    }
    points = {op: exits for op, exits in points.items() if _have_gradients(graph, exits)}
    whole = _Span(tuple(ops), (), graph.outputs)
    narrow = _split(graph, whole, {op: exits for op, exits in points.items() if len(exits) == 1})
    return [part for span in narrow for part in _repeated(graph, span, points, dependent)]


def _split(graph: Graph, span: _Span, points: Points) -> list[_Span]:
    """A span cut behind the ops of `points`, whose exits go out there."""
    params = {i.value.name for i in graph.inputs_of("param")}
    found, current, entries = [], list[Op](), span.entries
    for op in span.ops:
        current.append(op)
        if id(op) in points and op is not span.ops[-1] and _reads_params(current, params):
            found.append(_Span(tuple(current), entries, points[id(op)]))
            current, entries = [], points[id(op)]
    rest = _Span(tuple(current), entries, span.exits)
    if found and not _reads_params(current, params):
        last = found.pop()
        rest = _Span(last.ops + rest.ops, last.entries, span.exits)
    return [*found, rest]


def _have_gradients(graph: Graph, names: tuple[str, ...]) -> bool:
    """Whether all values are of a type that gradients have: a mask or an index cannot cross."""
    return all(graph.values[name].dtype in FLOATS for name in names)


def _repeated(graph: Graph, span: _Span, points: Points, dependent: set[str]) -> list[_Span]:
    """A span cut where the fewest values are live, so that spans repeat; itself where none do.

    Layers that all read a value of the first one, or that pass several streams on, are found so.
    """
    for width in range(2, MAX_BOUNDARY + 1):
        wide = {op: exits for op, exits in points.items() if len(exits) == width}
        parts = _split(graph, span, wide)
        if len(parts) == 1:
            continue
        pieces = [_piece_graph(graph, part, dependent)[0] for part in parts]
        kinds = [_structure(draws_from(piece, first_draw(piece))) for piece in pieces]
        counts = Counter(kinds)
        if max(counts.values()) > 1:
            return _joined(
                [(part, counts[kind] > 1) for part, kind in zip(parts, kinds, strict=True)]
            )
    return [span]


def _joined(parts: list[tuple[_Span, bool]]) -> list[_Span]:
    """The spans, neighbours that both occur once joined. parts: with whether each repeats."""
    (found, before), *rest = [([span], repeats) for span, repeats in parts]
    for (span,), repeats in rest:
        if repeats or before:
            found.append(span)
        else:
            found[-1] = _Span(found[-1].ops + span.ops, found[-1].entries, span.exits)
        before = repeats
    return found


def _reads_params(ops: list[Op], params: set[str]) -> bool:
    """A piece without parameters is not worth a cut: what follows takes it in."""
    return any(name in params for op in ops for name in op.inputs)


def _forks(graph: Graph, name: str) -> bool:
    if definition(graph.producer[name]).cast:
        return False
    readers = graph.users[name]
    while len(readers) == 1 and definition(readers[0]).cast:
        readers = graph.users[readers[0].output.name]
    return len(readers) > 1 or (len(readers) == 1 and definition(readers[0]).norm)


def _piece_graph(
    graph: Graph, span: _Span, dependent: set[str]
) -> tuple[Graph, tuple[str, ...], tuple[str, ...]]:
    """The graph of a span, and its parameters and context values in order of use."""
    ops = _with_token_ops(graph, list(span.ops), dependent)
    made = {v.name for op in ops for v in op.outputs}
    read = dict.fromkeys(n for op in ops for n in op.inputs if n and n not in made)
    kinds = {i.value.name: i for i in graph.inputs}
    entries = [Input(graph.values[n], "activation", _x(k)) for k, n in enumerate(span.entries)]
    by_kind: dict[str, list[Input]] = {
        "activation": entries,
        "data": [],
        "context": [],
        "param": [],
    }
    for name in read:
        if name in span.entries:
            continue
        if name in kinds and kinds[name].kind in ("param", "data"):
            item = kinds[name]
        else:
            item = Input(graph.values[name], "context", name)
        by_kind[item.kind].append(item)
    inputs = tuple(i for kind in by_kind.values() for i in kind)
    params = tuple(i.ref for i in by_kind["param"])
    context = tuple(i.ref for i in by_kind["context"])
    return prune(Graph("", inputs, tuple(ops), span.exits)), params, context


def _x(position: int) -> str:
    """The name of a value that comes in over a cut."""
    return f"x_{position + 1}" if position else "x"


def dy_name(position: int) -> str:
    """The name of the gradient that comes in for a value that goes out over a cut."""
    return f"dy_{position + 1}" if position else "dy"


def _with_token_ops(graph: Graph, ops: list[Op], dependent: set[str]) -> list[Op]:
    """Ops on tokens alone that an earlier piece holds are repeated where they are read."""
    present = {v.name for op in ops for v in op.outputs}
    data = {i.value.name for i in graph.inputs_of("data")}
    extra: list[Op] = []

    def pull(name: str) -> None:
        op = graph.producer.get(name)
        if op is None or name in present or name in dependent:
            return
        if not _reads_data(graph, op, data):
            return
        present.update(v.name for v in op.outputs)
        for operand in op.inputs:
            pull(operand)
        extra.append(op)

    for op in ops:
        for name in op.inputs:
            pull(name)
    return extra + ops


def _reads_data(graph: Graph, op: Op, data: set[str]) -> bool:
    return any(
        name in data or (name in graph.producer and _reads_data(graph, graph.producer[name], data))
        for name in op.inputs
    )


def _structure(piece: Graph) -> str:
    """Hash of ops, shapes, attributes and wiring, blind to names and sources."""
    order: dict[str, str] = {}
    for item in piece.inputs:
        order[item.value.name] = f"i{len(order)}"
    for op in piece.ops:
        for value in op.outputs:
            order[value.name] = f"v{len(order)}"
    ops = tuple(
        Op(
            op.target,
            tuple(order.get(n, "") for n in op.inputs),
            tuple(Value(order[v.name], v.dtype, v.shape) for v in op.outputs),
            op.attrs,
        )
        for op in piece.ops
    )
    inputs = tuple(
        Input(
            Value(order[i.value.name], i.value.dtype, i.value.shape),
            i.kind,
            i.ref if i.kind in ("context", "data") else "",
            trainable=i.trainable,
        )
        for i in piece.inputs
    )
    return text_hash(format_graph(Graph("", inputs, ops, tuple(order[n] for n in piece.outputs))))


_LAYER = re.compile(r"^(.*?\.)??\d+\.")


def relative_name(name: str) -> str:
    """A name from behind its layer number: `layers.3.ffn.up.weight` -> `ffn.up.weight`."""
    return _LAYER.sub("", name, count=1)


def _segment_name(piece: Graph, params: tuple[str, ...]) -> str:
    """`embed` from tokens, `head` to the loss; else the module that holds most parameters."""
    if piece.values[piece.outputs[0]].shape == ():
        return "head"
    if not piece.inputs_of("activation"):
        return "embed"
    parts = [relative_name(p).split(".")[0] for p in params]
    ranked = Counter(p for p in parts if "norm" not in p and not p.startswith("ln_"))
    return _identifier((ranked or Counter(parts)).most_common(1)[0][0])


def _identifier(text: str) -> str:
    text = re.sub(r"\W", "_", text)
    return f"_{text}" if text[:1].isdigit() else text


def _free(name: str, taken: Collection[str]) -> str:
    """The name, numbered where it is taken."""
    numbered = (name if n == 1 else f"{name}_{n}" for n in count(1))
    return next(n for n in numbered if n not in taken)


def _renamed(piece: Graph, name: str) -> Graph:
    """The piece with short names that are unique within it and valid in emitted Python."""
    taken = {dy_name(k) for k in range(MAX_BOUNDARY)}
    names: dict[str, str] = {}

    def short(old: str, kind: str) -> str:
        text = "x" if kind == "activation" else relative_name(old).removeprefix("model.")
        text = _identifier(
            text.removesuffix(".weight") + ("_w" if text.endswith(".weight") else "")
        )
        names[old] = _free(text, taken)
        taken.add(names[old])
        return names[old]

    inputs = tuple(
        Input(
            Value(short(i.value.name, i.kind), i.value.dtype, i.value.shape),
            i.kind,
            relative_name(i.ref) if i.kind == "param" else i.ref,
            i.init,
            i.trainable,
        )
        for i in piece.inputs
    )
    ops = tuple(
        Op(
            op.target,
            tuple(names.get(n, "") for n in op.inputs),
            tuple(Value(short(v.name, "value"), v.dtype, v.shape) for v in op.outputs),
            op.attrs,
            op.source,
        )
        for op in piece.ops
    )
    return verify(Graph(name, inputs, ops, tuple(names[n] for n in piece.outputs)))


def _context_graph(graph: Graph, ops: list[Op], wanted: tuple[str, ...]) -> Graph:
    """The graph of context values; constants read directly pass through."""
    inputs = graph.inputs_of("constant")
    context = prune(Graph("context", inputs, tuple(ops), wanted))
    used = {n for op in context.ops for n in op.inputs} | set(wanted)
    kept = tuple(i for i in inputs if i.value.name in used)
    return verify(Graph("context", kept, context.ops, wanted))
