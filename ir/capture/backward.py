"""Names of a backward's values, from what autograd's hooks see while it is traced.

A gradient is `d_v`. Where several uses of `v` contribute to it, the part from the use `u` is
`d_v_from_u`. A value between two gradients is named after the one it leads to and after its own
op: `d_v_mul`; a sum of some parts is `d_v_sum`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.overrides import TorchFunctionMode

from ..graph import Graph

# A value of the forward as autograd knows it: the step that differentiates its maker, its place.
Point: TypeAlias = tuple[Any, int]


def traced_name(tensor: Tensor) -> str:
    """The name of the traced node that makes a tensor; "" where none does."""
    mode = get_proxy_mode()
    assert mode is not None
    slot: Any = get_proxy_slot(tensor, mode.tracer, None)
    return slot.proxy.node.name if slot is not None else ""


def traced_names() -> list[str]:
    """Names of the nodes traced so far, none where nothing is traced."""
    mode = get_proxy_mode()
    return [n.name for n in mode.tracer.graph.nodes] if mode is not None else []


class _Points(TorchFunctionMode):
    """Maps the point of every value that a forward makes to its traced node."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Point, str] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor) and tensor.grad_fn is not None:
                self.found[tensor.grad_fn, tensor.output_nr] = traced_name(tensor)
        return result


def _nothing() -> None:
    pass


@dataclass
class Backward:
    """Record what hooks on autograd's steps see, by names of traced nodes.

    whole: the forward value whose gradient a node is. parts: the forward value, and the one that
    uses it. made_by: the forward value whose maker a node helps to differentiate. between: nodes
    made outside of every step; they sum parts. running: the forward value whose maker autograd
    differentiates, or did last. watch: called behind every step.
    """

    whole: dict[str, str] = field(default_factory=dict)
    parts: dict[str, tuple[str, str]] = field(default_factory=dict)
    made_by: dict[str, str] = field(default_factory=dict)
    between: set[str] = field(default_factory=set)
    running: str = ""
    watch: Callable[[], None] = _nothing

    @contextmanager
    def forward(self, leaves: list[Tensor]) -> Iterator[None]:
        """Around the ops of the forward; leaves: what gradients are asked of."""
        self._leaves = {id(leaf): traced_name(leaf) for leaf in leaves}
        points = _Points()
        with points:
            yield
        self._points = points.found

    @contextmanager
    def steps(self, ys: Sequence[Tensor]) -> Iterator[None]:
        """Around autograd's run from ys on; what it traces outside of its steps are sums."""
        self._seen = len(traced_names())
        makers = {step: name for (step, _), name in reversed(self._points.items())}
        first = [y.grad_fn for y in ys]
        self._last = makers.get(first[0], "")
        for step, maker in _steps(first, makers).items():
            step.register_prehook(self._before(step, maker))
            step.register_hook(self._after(step, maker))
        yield
        self._collect(self._last, self.between)

    def _before(self, step: Any, maker: str) -> Any:
        def hook(gradients: tuple[Tensor | None, ...]) -> None:
            self.running = maker
            self._collect(self._last, self.between)
            for place, gradient in enumerate(gradients):
                if gradient is not None and (step, place) in self._points:
                    self.whole.setdefault(traced_name(gradient), self._points[step, place])

        return hook

    def _after(self, step: Any, maker: str) -> Any:
        def hook(inputs: tuple[Tensor | None, ...], _: object) -> None:
            self.watch()
            self._collect(maker, set())
            self._last = maker
            for gradient, point in zip(inputs, step.next_functions, strict=False):
                target = self._target(point)
                if gradient is not None and target:
                    self.parts.setdefault(traced_name(gradient), (target, maker))

        return hook

    def _collect(self, maker: str, into: set[str]) -> None:
        """Attribute the nodes traced since the last call to a maker."""
        names = traced_names()
        fresh = names[self._seen :]
        self.made_by.update(dict.fromkeys(fresh, maker))
        into.update(fresh)
        self._seen = len(names)

    def _target(self, point: Point) -> str:
        leaf = getattr(point[0], "variable", None)
        return self._points.get(point) or self._leaves.get(id(leaf), "")


def _steps(first: Sequence[Any], makers: dict[Any, str]) -> dict[Any, str]:
    """The steps that autograd takes from some on, and the forward value whose maker each is for.

    A step of an op inside a composite one belongs to the composite's value.
    """
    found: dict[Any, str] = {}
    waiting = [(step, "") for step in first]
    while waiting:
        step, user = waiting.pop()
        if step is None or step in found or hasattr(step, "variable"):
            continue
        found[step] = makers.get(step, user)
        waiting += [(after, found[step]) for after, _ in step.next_functions]
    return found


def gradient_names(
    graph: Graph, backward: Backward, values: dict[str, str], results: dict[str, str]
) -> dict[str, str]:
    """New names of a joint graph's backward values.

    values: a value's name by its traced node. results: names of the gradients that the graph
    returns, which stay as they are given.
    """
    made = made_backward(backward, values)
    roots = dict(results)
    for node, source in backward.whole.items():
        if node in values and source in values:
            roots.setdefault(values[node], f"d_{values[source]}")
    for node, (source, user) in backward.parts.items():
        if node in values and source in values:
            part = f"{values[source]}_from_{_apart(values.get(user, user), values[source])}"
            roots.setdefault(values[node], f"d_{part}")
    sums = {values[n] for n in backward.between if n in values}
    return _numbered(graph, made, _between(graph, made, roots, sums), results)


def made_backward(backward: Backward, values: dict[str, str]) -> set[str]:
    """The values that a backward makes. values: a value's name by its traced node.

    A node of the backward may stand for a forward value: one that it saw again.
    """
    made = {value for node, value in values.items() if node in backward.made_by}
    return made - {value for node, value in values.items() if node not in backward.made_by}


def _apart(name: str, near: str) -> str:
    """A name without the words that it begins with as another does; one word of it stays."""
    words, others = name.split("_"), near.split("_")
    while others and words[0] == others.pop(0) and not "".join(words[1:2]).isdigit() and words[1:]:
        words.pop(0)
    return "_".join(words)


def _between(
    graph: Graph, backward: set[str], roots: dict[str, str], sums: set[str]
) -> dict[str, str]:
    """Names of all backward values, those between gradients named after the one they lead to."""
    names: dict[str, str] = {}
    root: dict[str, str] = {}
    for op in reversed(graph.ops):
        for value in op.outputs:
            if value.name not in backward:
                continue
            users = [v.name for user in graph.users[value.name] for v in user.outputs]
            after = next((root[n] for n in users if n in root), "d")
            root[value.name] = roots.get(value.name, after)
            kind = "sum" if value.name in sums else _base(op.target)
            names[value.name] = roots.get(value.name, f"{after}_{kind}")
    return names


def _base(target: str) -> str:
    return target.rpartition("::")[2].removeprefix("mw.").partition(".")[0].strip("_")


def _numbered(
    graph: Graph, backward: set[str], names: dict[str, str], results: dict[str, str]
) -> dict[str, str]:
    """The names in the graph's order, each taken once."""
    taken = (set(graph.values) - backward) | set(results.values())
    found = dict(results)
    for name in (v.name for op in graph.ops for v in op.outputs if v.name in names):
        if name not in found:
            found[name] = free(names[name], taken)
            taken.add(found[name])
    return found


def free(name: str, taken: set[str]) -> str:
    """The name, numbered where it is taken."""
    candidate, count = name, 1
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    return candidate
