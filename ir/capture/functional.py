"""Pure graphs: torch's captured graph with its writes as values and its no_grad regions as detach.

An export made with gradients on has each no_grad region as a call of a graph within the graph; the
region is written out, and what it returns is detached. A write into memory becomes a value: the
walk knows of every view which tensor it is a part of, and whoever reads after a write reads the
tensor with that part replaced. Writes into parameters, buffers and inputs are refused: they are
state that outlives a step.
"""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from ..errors import CaptureError
from .lines import line_of
from .nodes import writes

aten = torch.ops.aten
_SET_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST = "wrap_with_autocast"
_OPERATOR = re.compile("__i(and|or|xor|lshift|rshift)__")

# Views that hold all elements of a tensor in their order: undone by a view of the tensor's shape.
_SHAPES = {
    "view",
    "reshape",
    "_unsafe_view",
    "unsqueeze",
    "squeeze",
    "flatten",
    "unflatten",
    "alias",
}


def op_name(target: Any) -> str:
    """The name of an op without its namespace; "" of what is no op of torch's."""
    return target._schema.name.partition("::")[2] if hasattr(target, "_schema") else ""


# Graphs within the graph


def inline_regions(module: GraphModule, state: dict[Node, str]) -> None:
    """Write out no_grad regions, what they return detached, and regions that turn autocast off.

    Others are refused. state: names of what outlives a step, by node.
    """
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(
            node.target, torch._ops.HigherOrderOperator
        ):
            continue
        enabled, called, given = _region(module, node)
        inner = getattr(module, str(called.target))
        places = [n for n in inner.graph.nodes if n.op == "placeholder"]
        known = {p: state[g] for p, g in zip(places, given, strict=True) if g in state}
        inline_regions(inner, known)
        if not enabled:
            _refuse_outer_writes(inner.graph, known)
        with graph.inserting_before(node):
            made = graph.graph_copy(inner.graph, dict(zip(places, given, strict=True)))
        results = made if isinstance(made, tuple | list) else (made,)
        for user in list(node.users):
            value = _unchanged(results[user.args[1]])
            if not enabled and value not in given and isinstance(user.meta.get("val"), Tensor):
                with graph.inserting_before(user):
                    value = _call(graph, aten.detach.default, (value,), user)
            user.replace_all_uses_with(value)
            graph.erase_node(user)
        graph.erase_node(node)


def _unchanged(value: Any) -> Any:
    """Return what a cast is of that changes nothing: torch returns that tensor, also without
    gradients, and an export takes it for the same one from there on."""
    while isinstance(value, Node) and op_name(value.target) in ("to", "type_as"):
        given: Any = value.args[0]
        if _copies(value) or value.meta["val"].dtype != given.meta["val"].dtype:
            break
        value = given
    return value


def _copies(cast: Node) -> bool:
    named = (argument.name for argument in cast.target._schema.arguments)  # type: ignore[union-attr]
    return bool((dict(zip(named, cast.args, strict=False)) | cast.kwargs).get("copy"))


def _region(module: GraphModule, node: Node) -> tuple[bool, Node, list]:
    """Whether a graph within the graph has gradients, its node, and what it is given.

    Raises CaptureError, with the first line in it, for one of another kind.
    """
    if node.target is _SET_GRAD:
        enabled, called, *given = node.args
        return bool(enabled), called, given  # type: ignore[return-value]
    if _is_autocast(node) and not node.args[2]:
        return True, node.args[4], list(node.args[5:])  # type: ignore[return-value]
    raise _refusal_of(module, node)


def _is_autocast(node: Node) -> bool:
    return node.target.name() == _AUTOCAST  # type: ignore[union-attr]


def _refusal_of(module: GraphModule, node: Node) -> CaptureError:
    parts = [getattr(module, str(a.target)) for a in node.all_input_nodes if a.op == "get_attr"]
    inner = (n for part in parts if isinstance(part, GraphModule) for n in part.graph.nodes)
    line = next(filter(None, map(line_of, (node, *inner))), "a line of torch's own")
    if _is_autocast(node):
        return CaptureError(
            f"torch.autocast around {line}: the dtype of each op is the plan's decision (--dtype); "
            "leave autocast out, or cast where it is needed, as in x.bfloat16()"
        )
    name = node.target.name()  # type: ignore[union-attr]
    return CaptureError(
        f"{name} at {line}: a region of its own; only no_grad and enable_grad regions are "
        "captured, so write what it computes in tensor ops"
    )


def _refuse_outer_writes(graph: Graph, state: dict[Node, str]) -> None:
    """A write under no_grad into a tensor from outside is one that autograd does not see."""
    places = {n for n in graph.nodes if n.op == "placeholder"}
    of = {n: n for n in places}
    for node in graph.nodes:
        first = node.args[0] if node.args and isinstance(node.args[0], Node) else None
        if node.op == "call_function" and first in of:
            if writes(node):
                if of[first] in state:
                    raise _writes_state(node, state[of[first]])
                raise CaptureError(
                    f"{op_name(node.target)} at {_source(node)} writes under no_grad into a tensor "
                    "made outside, which autograd does not see; write before the region, or "
                    "return a new tensor"
                )
            if _is_view(node) or node.target is operator.getitem:
                of[node] = of[first]


def _writes_state(node: Node, name: str) -> CaptureError:
    return CaptureError(
        f"{op_name(node.target)} at {_source(node)} writes into {name}, which outlives the "
        "step; a program keeps no such state: make it a value that forward returns"
    )


def _call(graph: Graph, target: Any, args: tuple, like: Node, kwargs: dict | None = None) -> Node:
    node = graph.call_function(target, args, kwargs or {})
    node.meta = dict(like.meta)
    return node


def _is_view(node: Node) -> bool:
    """Whether the result of an op, or each of several, is memory of its first operand."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.is_mutable or not any(r.alias_info for r in schema.returns):
        return False
    made, given = node.meta.get("val"), node.args[0]
    if isinstance(made, Tensor) and isinstance(given, Node):  # a cast that changes nothing is one
        return made.dtype == given.meta["val"].dtype
    return True


def _is_list(node: Node) -> bool:
    return isinstance(node.meta.get("val"), tuple | list)


def _source(node: Node) -> str:
    return line_of(node) or "a line of torch's own"


def drop_idle_detaches(graph: Graph, params: set[str]) -> None:
    """Leave out each detach of what depends on no parameter. params: names of their nodes."""
    depends: set[Node] = set()
    for node in list(graph.nodes):
        if node.name in params or depends.intersection(node.all_input_nodes):
            depends.add(node)
        elif node.op == "call_function" and op_name(node.target) == "detach":
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


# Writes


@dataclass(frozen=True)
class _View:
    """One step from a tensor to a part of it: the call, and which of several results."""

    target: Any
    args: tuple
    kwargs: dict
    like: Node
    pick: int | None = None


Chain: TypeAlias = tuple[_View, ...]


@dataclass
class Functionalise:
    """Turn the writes of a graph into values.

    homes: of a view the tensor it is a part of, how, and how many writes that had seen. latest: of
    a tensor its value after all writes so far. writes: how many each has seen. fresh: views made
    again after a write. state: names of what outlives a step, by node.
    """

    graph: Graph
    state: dict[Node, str] = field(default_factory=dict)
    homes: dict[Node, tuple[Node, Chain, int]] = field(default_factory=dict)
    latest: dict[Node, Node] = field(default_factory=dict)
    writes: dict[Node, int] = field(default_factory=dict)
    fresh: dict[tuple[Node, int], Node] = field(default_factory=dict)

    def run(self) -> None:
        """Replace every write.

        Raises CaptureError for one that is state, or that no value stands for.
        """
        if not any(map(writes, self.graph.nodes)):
            return
        for node in list(self.graph.nodes):
            if node.op == "output":
                node.args = map_arg(node.args, self._now)
            elif node.op == "call_function":
                with self.graph.inserting_before(node):
                    self._visit(node)
        for node in reversed(list(self.graph.nodes)):
            if node.op == "call_function" and not node.users:
                self.graph.erase_node(node)

    def _visit(self, node: Node) -> None:
        first = node.args[0] if node.args and isinstance(node.args[0], Node) else None
        given, options = tuple(node.args[1:]), dict(node.kwargs)
        node.args, node.kwargs = map_arg(node.args, self._now), map_arg(node.kwargs, self._now)
        name = op_name(node.target)
        if first is None:
            return
        base, chain, _ = self.homes.get(first, (first, (), 0))
        if name == "detach_" and (chain or base in self.state):
            # As torch.tensor ends in one; of a value that no gradient reaches.
            node.target = aten.detach.default
        elif writes(node):
            self._write(node, name, base, chain)
        elif _is_view(node):
            view = _View(node.target, given, options, node)
            self.homes[node] = (base, (*chain, view), self.writes.get(base, 0))
        elif node.target is operator.getitem and chain and _is_list(chain[-1].like):
            last = chain[-1]
            place: Any = given[0]
            picked = _View(last.target, last.args, last.kwargs, node, place)
            self.homes[node] = (base, (*chain[:-1], picked), self.writes.get(base, 0))

    def _write(self, node: Node, name: str, base: Node, chain: Chain) -> None:
        if base in self.state:
            raise _writes_state(node, self.state[base])
        through = [op_name(view.target) for view in chain]
        for shared in {"detach", "expand"}.intersection(through):
            raise CaptureError(
                f"{name} at {_source(node)} writes through {shared}; write into a tensor of its own"
            )
        value = self._written(node, name)
        self.latest[base] = self._put(self.latest.get(base, base), chain, value, node)
        self.writes[base] = self.writes.get(base, 0) + 1
        self.homes[node] = (base, chain, -1)

    def _now(self, node: Node) -> Node:
        """A value as it is after all writes so far."""
        if node not in self.homes:
            return self.latest.get(node, node)
        base, chain, seen = self.homes[node]
        count = self.writes.get(base, 0)
        if count == seen:
            return node
        key = (node, count)
        if key not in self.fresh:
            value = self.latest[base]
            for view in chain:
                value = self._view(view, value)
            self.fresh[key] = value
        return self.fresh[key]

    def _view(self, view: _View, value: Node) -> Node:
        made = _call(self.graph, view.target, (value, *view.args), view.like, view.kwargs)
        if view.pick is None:
            return made
        return _call(self.graph, operator.getitem, (made, view.pick), view.like)

    def _put(self, parent: Node, chain: Chain, value: Node, writer: Node) -> Node:
        """`parent` with the part that a chain of views leads to replaced by `value`."""
        if not chain:
            return value
        view, *rest = chain
        if rest:
            value = self._put(self._view(view, parent), tuple(rest), value, writer)
        return self._back(view, parent, value, writer)

    def _back(self, view: _View, parent: Node, value: Node, writer: Node) -> Node:
        """`parent` with one view of it replaced."""
        name, args = op_name(view.target), view.args
        if name == "narrow":
            dim, start, length = args
            stop = start + length if isinstance(start, int) and isinstance(length, int) else None
            if stop is not None:
                where = (parent, value, dim, start, stop)
                return _call(self.graph, aten.slice_scatter.default, where, parent)
        scatter = getattr(aten, f"{name}_scatter", None)
        if scatter is not None:
            given, options = (parent, value, *args), view.kwargs
            return _call(self.graph, scatter.default, given, parent, options)
        if name in ("transpose", "t"):
            return _call(self.graph, view.target, (value, *args), parent)
        if name == "permute":
            order = [args[0].index(n) for n in range(len(args[0]))]
            return _call(self.graph, aten.permute.default, (value, order), parent)
        if name in _SHAPES or name == "contiguous":
            return _call(self.graph, aten.view.default, (value, _shape(self.graph, parent)), parent)
        raise CaptureError(
            f"{op_name(writer.target)} at {_source(writer)} writes through {name}; write into a "
            "slice, a selection, or the whole tensor"
        )

    def _written(self, node: Node, name: str) -> Node:
        """The value that an in-place op writes."""
        x: Any
        x, *rest = node.args
        made = _SPECIAL.get(name)
        if made is not None:
            return made(self.graph, node, x, rest)
        target = without_writing(node.target)
        if target is None:
            raise CaptureError(
                f"{name} at {_source(node)} changes its operand in place; write it as an op that "
                "returns a new tensor"
            )
        written = _call(self.graph, target, (x, *rest), node, dict(node.kwargs))
        dtype = x.meta["val"].dtype
        value = _value_of(written)
        if value.dtype == dtype:
            return written
        written.meta["val"] = value  # a wider operand, or what sums up small integers
        return _call(self.graph, aten.to.dtype, (written, dtype), node)


def _value_of(node: Node) -> Tensor:
    """What an op returns, without data."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    value: Tensor = node.target(*args, **kwargs)  # type: ignore[operator]
    return value


def without_writing(target: Any) -> Any:
    """The overload that returns what an in-place op writes into its first operand; None: none."""
    namespace, _, base = target._schema.name.partition("::")
    operator_name = _OPERATOR.fullmatch(base)
    plain = f"__{operator_name[1]}__" if operator_name else base.removesuffix("_")
    packet = getattr(getattr(torch.ops, namespace), plain, None)
    found = (getattr(packet, name) for name in packet.overloads()) if packet else ()
    pure = (o for o in found if not o._schema.is_mutable)
    return next((o for o in pure if _taken(o) == _taken(target)), None)


def _taken(overload: Any) -> list[tuple[str, str]]:
    """The arguments of an overload by name and type; the first has one of two names."""
    first, *rest = overload._schema.arguments
    return [("", str(first.type)), *((a.name, str(a.type)) for a in rest)]


def _copied(graph: Graph, node: Node, x: Node, rest: list) -> Node:
    """`copy_`: the source in the target's dtype and shape."""
    source, value = rest[0], x.meta["val"]
    if source.meta["val"].dtype != value.dtype:
        source = _call(graph, aten.to.dtype, (source, value.dtype), node)
    return _call(graph, aten.expand.default, (source, _shape(graph, x)), x)


def _shape(graph: Graph, x: Node) -> list:
    """The sizes of a value, symbolic ones as nodes."""
    sizes: list = list(x.meta["val"].shape)
    for dim, size in enumerate(sizes):
        if not isinstance(size, int):
            sizes[dim] = graph.call_function(aten.sym_size.int, (x, dim))
            sizes[dim].meta = {"val": size}
    return sizes


def _filled(graph: Graph, node: Node, x: Node, rest: list) -> Node:
    if isinstance(rest[0], Node):
        return _copied(graph, node, x, rest)
    return _call(graph, aten.full_like.default, (x, rest[0]), x)


_SPECIAL: dict[str, Callable[[Graph, Node, Node, list], Node]] = {
    "copy_": _copied,
    "fill_": _filled,
    "zero_": lambda graph, node, x, rest: _call(graph, aten.zeros_like.default, (x,), x),
    "detach_": lambda graph, node, x, rest: _call(graph, aten.detach.default, (x,), x),
}
