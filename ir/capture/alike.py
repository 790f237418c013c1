"""Layers that are alike, each traced once: torch.export takes 0.15 s for a layer of a Llama, and a
model may have 126 of them.

A class of modules that says `alike_once = True` promises that what its forward does follows from
its attributes, its parameters and its arguments. While `traced_once` lasts, the first of several
alike layers is traced. Of another one, given arguments that look the same, its nodes are copied,
with the other's parameters, arguments and paths. Everything else is traced as it comes.

torch's tracer is private: `_Tracer` is all that is asked of it.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.experimental import proxy_tensor
from torch.utils import _pytree as pytree


@contextmanager
def traced_once(module: nn.Module) -> Iterator[None]:
    """Trace alike layers of the module once, while it is exported."""
    classes = {type(m) for m in module.modules() if getattr(m, "alike_once", False)}
    plain = {cls: cls.forward for cls in classes}
    known: dict[Hashable, _Trace] = {}
    try:
        for cls, forward in plain.items():
            cls.forward = _tracing(forward, known)
        yield
    finally:
        for cls, forward in plain.items():
            cls.forward = forward


def _tracing(forward: Callable, known: "dict[Hashable, _Trace]") -> Callable:
    def traced(layer: nn.Module, *args: Any) -> Any:
        tracer, looks = _Tracer.active(), _looks(layer, args)
        if tracer is None or looks is None:
            return forward(layer, *args)
        if looks not in known:
            before = tracer.last
            out = forward(layer, *args)
            if (found := _Trace.of(tracer, before, layer, args, out)) is not None:
                known[looks] = found
            return out
        return known[looks].copied(tracer, layer, args)

    return traced


# What layers look like


def _looks(layer: nn.Module, args: tuple) -> Hashable | None:
    """Return what alike layers and arguments have in common; None where that cannot be told."""
    leaves, spec = pytree.tree_flatten(args)
    try:
        looks = str(spec), tuple(map(_look_of, leaves)), _of_module(layer, {})
        hash(looks)
    except TypeError:
        return None
    return looks


def _of_module(module: nn.Module, numbers: dict[int, int]) -> Hashable:
    """numbers: of parameters by their id, in the order in which they come."""
    own = {**module._parameters, **module._buffers}
    for tensor in own.values():
        numbers.setdefault(id(tensor), len(numbers))
    return (
        type(module).__qualname__,
        tuple((n, numbers[id(t)], None if t is None else _look_of(t)) for n, t in own.items()),
        tuple(sorted(_attributes(module))),
        tuple((n, m and _of_module(m, numbers)) for n, m in module._modules.items()),
    )


_OF_TORCH = set(vars(nn.Module())) | {"forward"}  # the forward of a semantic op follows from them


def _attributes(module: nn.Module) -> Iterator[tuple[str, str, Hashable]]:
    """Raises TypeError for an attribute that is no plain value, and for a hook."""
    for name, value in vars(module).items():
        if name in _OF_TORCH:
            if name.endswith("_hooks") and value:
                raise TypeError(name)
        elif isinstance(value, bool | int | float | str | None):
            yield name, type(value).__name__, repr(value)
        else:
            raise TypeError(name)


def _look_of(value: Any) -> Hashable:
    """Sizes are compared as expressions: comparing symbols would bind them."""
    if not isinstance(value, Tensor):
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise TypeError(value)
        return type(value), value
    sizes = tuple(map(str, (*value.shape, *value.stride(), value.storage_offset())))
    return sizes, value.dtype, str(value.device), value.requires_grad


# The tracer of torch


@dataclass(frozen=True)
class _Tracer:
    """torch's tracer of an export."""

    of_torch: Any

    @staticmethod
    def active() -> "_Tracer | None":
        mode = proxy_tensor.get_proxy_mode()
        tracer = None if mode is None else mode.tracer
        return _Tracer(tracer) if hasattr(tracer, "module_stack") else None

    @property
    def last(self) -> Node:
        """Return the last node so far."""
        return self.of_torch.graph._root.prev

    def node_of(self, value: Any) -> Node | None:
        """Return the node of a tensor; None of one that is not traced."""
        found = proxy_tensor.get_proxy_slot(value, self.of_torch, None)
        return None if found is None else found.proxy.node

    def path_of(self, layer: nn.Module) -> str:
        return self.of_torch.path_of_module(layer)

    def copy(self, node: Node, of: Callable[[Node], Node], paths: tuple[str, str]) -> Node:
        """Copy a node to the end. of: what takes the place of a node that it reads. paths: of the
        layer that it is of, and of the one that the copy is of."""
        made = self.of_torch.graph.node_copy(node, of)
        made.meta = dict(node.meta)
        stack = node.meta.get("nn_module_stack") or {}
        made.meta["nn_module_stack"] = {
            _moved(key, paths): (_moved(path, paths), kind) for key, (path, kind) in stack.items()
        }
        return made

    def tensor_of(self, node: Node, grad: bool) -> Tensor:
        """Return a traced tensor that a node makes, which takes a gradient as others do."""
        with proxy_tensor.disable_proxy_modes_tracing():
            made = node.meta["val"].detach().requires_grad_(grad).clone()
        proxy = self.of_torch.proxy(node)
        return proxy_tensor.track_tensor_tree(made, proxy, constant=None, tracer=self.of_torch)


def _moved(path: str, paths: tuple[str, str]) -> str:
    """Return a path within one layer as that within another."""
    old, new = paths
    inside = path == old or path.startswith((f"{old}.", f"{old}@"))
    return new + path[len(old) :] if inside else path


# What was traced


@dataclass(frozen=True)
class _Trace:
    """The nodes of a layer, and those of its parameters, buffers and arguments in order. made: the
    nodes of what it returns, and whether each takes a gradient."""

    path: str
    nodes: tuple[Node, ...]
    given: tuple[Node, ...]
    made: tuple[tuple[Node, bool], ...]
    spec: pytree.TreeSpec

    @staticmethod
    def of(
        tracer: _Tracer, before: Node, layer: nn.Module, args: tuple, out: Any
    ) -> "_Trace | None":
        """None where it reads what is neither given nor a size, makes constants, or returns what
        it is given or no tensor."""
        nodes, given = _between(before, tracer.last), _given(tracer, layer, args)
        leaves, spec = pytree.tree_flatten(out)
        ends = [tracer.node_of(x) if isinstance(x, Tensor) else None for x in leaves]
        inner = {*nodes, *given}
        read = {n for node in nodes for n in node.all_input_nodes if not _is_size(n)}
        plain = all(node.op == "call_function" for node in nodes)
        if not plain or not read <= inner or not set(ends) <= set(nodes):
            return None
        made = tuple((n, x.requires_grad) for n, x in zip(ends, leaves, strict=True) if n)
        return _Trace(tracer.path_of(layer), nodes, given, made, spec)

    def copied(self, tracer: _Tracer, layer: nn.Module, args: tuple) -> Any:
        """Return what another layer returns."""
        of = dict(zip(self.given, _given(tracer, layer, args), strict=True))
        paths = self.path, tracer.path_of(layer)
        for node in self.nodes:
            if not _is_size(node):
                of[node] = tracer.copy(node, lambda n: of.get(n, n), paths)
        leaves = [tracer.tensor_of(of[node], grad) for node, grad in self.made]
        return pytree.tree_unflatten(leaves, self.spec)


def _between(before: Node, last: Node) -> tuple[Node, ...]:
    found = []
    while last is not before:
        found.append(last)
        last = last.prev
    return tuple(reversed(found))


def _given(tracer: _Tracer, layer: nn.Module, args: tuple) -> tuple[Node, ...]:
    """Return the nodes of a layer's parameters, buffers and arguments."""
    own = [*layer.parameters(), *layer.buffers()]
    tensors = [x for x in (*own, *pytree.tree_leaves(args)) if isinstance(x, Tensor)]
    return tuple(node for x in tensors if (node := tracer.node_of(x)) is not None)


def _is_size(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)
