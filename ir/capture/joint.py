"""The joint graph of a segment: forward and vector-Jacobian product in one graph.

`make_fx` traces the segment's ops and `torch.autograd.grad` through them, over fake tensors with
symbolic B and S. Composite ops are expanded into primitives here, the same on every device;
semantic ops stay whole. Every value that backward reads is visible.

Outputs of a joint graph: those of the segment, then the gradient of each activation input ("-"
when there is none), then the gradient of each parameter, in input order ("-" for a frozen one).
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
    free_unbacked_symbols,
)

from ..errors import CaptureError, SizeError
from ..graph import Graph, Input, Op, Value, prune, verify
from ..lengths import Lengths
from ..ops.call import arguments_of, attributes_of
from ..ops.registry import definition
from ..segment import Segment, dy_name
from ..sizes import B, S, Size
from . import biased_choice  # noqa: F401  declares an op that graphs name
from .backward import Backward, free, gradient_names, made_backward, traced_names
from .composites import EXPANSIONS
from .functional import Functionalise
from .fx import FxReader, torch_dtype
from .nodes import target_name
from .steps import symbol_of
from .symbolic import concrete

aten = torch.ops.aten

# Numbers at hand of rows, and of steps of a row, while torch traces: primes.
_ROWS, _OTHER_ROWS, _STEPS = 7, 11, 13


def joint(segment: Segment, lengths: Lengths) -> Graph:
    """Trace a unique segment's forward and backward; CaptureError for what torch refuses.

    lengths: of rows that the segment is for, one of which torch has at hand.
    """
    graph, step = segment.graph, lengths.step
    fake = _FakeInputs(lengths)
    wanted = {i.value.name for i in segment.wanted}
    arguments = [fake.tensor(i.value, i.value.name in wanted) for i in graph.inputs]
    is_loss = graph.values[graph.outputs[0]].shape == ()
    incoming = range(is_loss, len(graph.outputs))  # the loss's own gradient is 1
    arguments += [fake.tensor(graph.values[graph.outputs[k]], False) for k in incoming]
    last = len(arguments)
    arguments += fake.sizes_beside(graph)
    made: dict[str, Op] = {}  # traced node name -> the forward op it came from
    positions = [n for n, i in enumerate(graph.inputs) if i.value.name in wanted]
    backward = Backward()

    def run(*tensors: Tensor) -> tuple[Tensor | None, ...]:
        inputs = list(tensors[: len(graph.inputs)])
        leaves = [inputs[n] for n in positions]
        with backward.forward(leaves):
            ys = evaluate(graph, inputs, made, fake, tensors[last:])
        if not positions:
            return ys
        with backward.steps(ys):
            own = [torch.ones_like(ys[0])] if is_loss else []
            dys = [*own, *tensors[len(graph.inputs) : last]]
            backward.watch = lambda: fake.refuse_fixed(made.get(backward.running))
            with _refused_with(lambda: made.get(backward.running)):
                grads = _gradients(ys, leaves, dys)
        return (*ys, *_whole_boundary(graph, positions, leaves, grads))

    with fake.mode, enable_python_dispatcher():
        traced = make_fx(run, decomposition_table=_decompositions())(*arguments)
    Functionalise(traced.graph).run()
    reader = _JointReader(
        symbols=fake.symbols, step=step, joint=True, names=made, made_by=backward.made_by
    )
    return _read(segment, traced, reader, backward, incoming)


def _gradients(
    ys: Sequence[Tensor], leaves: Sequence[Tensor], dys: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """The gradient of each leaf; None where no output depends on it."""
    through = [(y, dy) for y, dy in zip(ys, dys, strict=True) if y.requires_grad]
    if not through:
        return (None,) * len(leaves)
    outputs, incoming = zip(*through, strict=True)
    return torch.autograd.grad(outputs, leaves, incoming, allow_unused=True)


def _whole_boundary(
    graph: Graph,
    positions: Sequence[int],
    leaves: Sequence[Tensor],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The gradients, zeros in place of none: of several values at a cut all have one, or none."""
    kinds = [graph.inputs[n].kind for n in positions]
    alone = kinds.count("activation") == 1
    return [
        torch.zeros_like(leaf) if grad is None and kind == "activation" and not alone else grad
        for leaf, kind, grad in zip(leaves, kinds, grads, strict=True)
    ]


def _steps_at_hand(lengths: Lengths) -> int:
    """Return a number of steps of a row that is neither the least nor the most, where one is: what
    a slice ends at, and what torch calls equal, is asked of that number."""
    least, most = lengths.least // lengths.step, lengths.most and lengths.most // lengths.step
    found = _STEPS if least < _STEPS else sympy.nextprime(least)
    return found if most is None or found < most else max(2, (least + most + 1) // 2)


class _FakeInputs:
    def __init__(self, lengths: Lengths) -> None:
        step, count = lengths.step, _steps_at_hand(lengths)
        self.mode = FakeTensorMode(shape_env=ShapeEnv())
        # What it keeps of an op would serve the same op again, and few ops of a segment are.
        self.mode.cache_enabled = False
        context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * 2)
        hint = torch.empty(_OTHER_ROWS if count == _ROWS else _ROWS, count)
        sizes: tuple[Any, ...] = self.mode.from_tensor(hint, symbolic_context=context).shape
        self.b, steps = sizes
        self.s = steps * step if step > 1 else steps
        self.symbols = {self.b.node.expr: B, steps.node.expr: symbol_of(step)}

    def size(self, size: Size) -> Any:
        if isinstance(size, int):
            return size
        return concrete(size, {"B": self.b, "S": self.s})

    def refuse_fixed(self, op: Op | None) -> None:
        """Raise CaptureError if an op, or its gradient, has bound a size to a number."""
        sizes = (("B", self.b), ("S", self.s))
        for name in (name for name, size in sizes if size.node.maybe_as_int() is not None):
            raise _not_for_every_size(op, f"torch binds {name} to a number there")

    def sizes_beside(self, graph: Graph) -> list[Tensor]:
        """A tensor [B, S] to read sizes off, where no inputs of a graph have both by themselves."""
        if {B, S} <= {size for item in graph.inputs for size in item.value.shape}:
            return []
        with self.mode:
            return [torch.empty((self.b, self.s))]

    def tensor(self, value: Value, requires_grad: bool) -> Tensor:
        with self.mode:
            shape = [self.size(s) for s in value.shape]
            return torch.empty(
                shape,
                dtype=torch_dtype(value.dtype),
                requires_grad=requires_grad,
            )


@contextmanager
def _refused_with(running: Callable[[], Op | None]) -> Iterator[None]:
    """Turn what torch does not take into a CaptureError about the op that it runs."""
    try:
        yield
    except CaptureError:
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise _not_for_every_size(running(), reason) from error


def _not_for_every_size(op: Op | None, reason: str) -> SizeError:
    where = f"{op.target} at {op.source or 'an unknown line'}" if op else "the loss"
    return SizeError(
        f"{where} cannot be traced with its gradient for every batch and sequence size: "
        f"{reason}; write it in other ops"
    )


def _itself(op: Op) -> Op:
    return op


def evaluate(
    graph: Graph,
    inputs: list[Tensor],
    made: dict[str, Op] | None = None,
    fake: _FakeInputs | None = None,
    sized: Sequence[Tensor] = (),
) -> tuple[Tensor, ...]:
    """Run a graph's ops on `inputs`; under a trace, `made` maps new nodes to their op.

    sized: a tensor [B, S], where the inputs do not say both sizes.
    Raises CaptureError for an op that torch does not take.
    """
    env = dict(zip((i.value.name for i in graph.inputs), inputs, strict=True))
    sizes = _size_values(graph, env) | {
        name: size for x in sized for name, size in zip("BS", x.shape, strict=True)
    }
    for op in graph.ops:
        before = traced_names()
        with _refused_with(partial(_itself, op)):
            result = _call(op, [env[n] if n else None for n in op.inputs], sizes)
        if fake is not None:
            fake.refuse_fixed(op)
        results = result if isinstance(result, tuple | list) else (result,)
        env.update((v.name, r) for v, r in zip(op.outputs, results, strict=True))
        if made is not None:
            made.update(dict.fromkeys(traced_names()[len(before) :], op))
    return tuple(env[name] for name in graph.outputs)


def _size_values(graph: Graph, env: dict[str, Tensor]) -> dict:
    found = {}
    for item in graph.inputs:
        for size, actual in zip(item.value.shape, env[item.value.name].shape, strict=True):
            if size in (B, S):
                found[str(size)] = actual
    return found


def _call(op: Op, tensors: list, sizes: dict) -> object:
    if definition(op).kind == "composite":
        attrs = {k: _concrete(v, sizes) for k, v in op.attrs}
        return EXPANSIONS[definition(op).name](*tensors, **attrs)
    if definition(op).reshapes:
        # A copy where the strides want one: semantic ops may return others than torch's own.
        return torch.reshape(tensors[0], _concrete(op.attr("size"), sizes))
    overload = resolve(op.target)
    if not definition(op).registered:
        return _call_again(op, overload, tensors, sizes)
    remaining, attrs = list(tensors), dict(op.attrs)
    given: Any
    arguments: list[object] = []
    keywords: dict[str, object] = {}
    for argument in overload._schema.arguments:
        kind = str(argument.type)
        if "List[Tensor]" in kind and argument.name in attrs:
            count = int(attrs.pop(argument.name))
            given = [remaining.pop(0) for _ in range(count)]
        elif argument.name in attrs:
            given = _concrete(attrs.pop(argument.name), sizes)
            given = torch_dtype(given) if _is_dtype(argument, given) else given
        elif "Tensor" in kind and remaining:
            given = remaining.pop(0)
        elif argument.has_default_value():
            given = argument.default_value
        else:
            given = None
        if argument.kwarg_only:
            keywords[argument.name] = given
        else:
            arguments.append(given)
    return overload(*arguments, **keywords)


def _call_again(op: Op, overload: Any, tensors: list, sizes: dict) -> object:
    """An op that nobody registered, with the arguments it was captured with."""
    given = list(arguments_of(op, tensors))
    keywords: dict[str, object] = {a.name: a.given for a in given if a.keyword}
    for name, value, is_dtype in attributes_of(op):
        keywords[name] = torch_dtype(value) if is_dtype else _concrete(value, sizes)
    again: Callable[..., object] = _put if overload is aten.index_put.default else overload
    return again(*(a.given for a in given if not a.keyword), **keywords)


def _put(
    x: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """torch's index_put. Where one value takes all places of a mask, its gradient is made without
    an index of bools, the size of which values decide."""
    mask = indices[0]
    masked = len(indices) == 1 and mask is not None and mask.dtype == torch.bool
    if mask is None or not masked or accumulate or values.dim() > x.dim() - mask.dim():
        return torch.ops.aten.index_put(x, indices, values, accumulate)
    whole = mask.reshape(*mask.shape, *(1,) * (x.dim() - mask.dim()))
    return torch.where(whole, values, x)


def _is_dtype(argument: Any, given: object) -> bool:
    return isinstance(given, str) and argument.name == "dtype"


def _concrete(value: Any, sizes: dict) -> Any:
    if isinstance(value, tuple):
        return [_concrete(v, sizes) for v in value]
    return concrete(value, sizes)


def resolve(target: str) -> Any:
    """The torch overload behind an op name."""
    if target.startswith("mw."):
        return getattr(torch.ops.meshwright, target[3:]).default
    namespace, _, base = target.rpartition("::")
    name, _, overload = base.partition(".")
    packet = getattr(getattr(torch.ops, namespace or "aten"), name)
    return getattr(packet, overload or "default")


def _decompositions() -> dict:
    """What is traced in primitives: selections, as slices, and gradients that autograd makes by an
    op of its own."""
    from torch._decomp import get_decompositions

    table = get_decompositions([aten._softmax_backward_data, aten.native_layer_norm_backward])
    selections = {
        aten.select.int: _select,
        aten.select_backward.default: _select_backward,
        aten.unbind.int: _unbind,
    }
    return dict(table) | selections


def _select(x: Tensor, dim: int, index: int) -> Tensor:
    return aten.slice.Tensor(x, dim, index, _after(index)).squeeze(dim)


def _unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    return [_select(x, dim, index) for index in range(x.shape[dim])]


def _select_backward(dy: Tensor, input_sizes: list[int], dim: int, index: int) -> Tensor:
    rows = dy.unsqueeze(dim)
    return aten.slice_backward(rows, input_sizes, dim, index, _after(index), 1)


def _after(index: int) -> int:
    """Where the slice of one element ends; the last one's where its dim does."""
    return sys.maxsize if index == -1 else index + 1


@dataclass(kw_only=True)
class _JointReader(FxReader):
    """Names: forward values after the segment's own, backward values after their op."""

    names: dict[str, Op]
    made_by: dict[str, str]
    taken: set[str] = field(default_factory=set)

    def where(self, node: Node) -> str:
        """The op, and the forward op whose gradient it is part of."""
        op, target = self.maker(node), target_name(node.target)
        if op is None:
            return f"{target} of a backward"
        return f"{target}, a part of {op.target} at {op.source or 'an unknown line'},"

    def maker(self, node: Node) -> Op | None:
        """The forward op that a node computes or differentiates."""
        return self.names.get(self.made_by.get(node.name, node.name))

    def value_name(self, node: Node) -> str:
        """The forward op's name, or the traced op's; always a Python identifier."""
        op = self.names.get(node.name)
        if op is not None and len(op.outputs) > 1:
            return op.output.name.rpartition("_")[0]
        return op.output.name if op else node.target._schema.name.partition("::")[2].strip("_")  # type: ignore[union-attr]


def _read(
    segment: Segment,
    traced: GraphModule,
    reader: _JointReader,
    backward: Backward,
    incoming: Sequence[int],
) -> Graph:
    """The joint graph of a trace; incoming: positions of the outputs whose gradients it takes."""
    graph = segment.graph
    nodes = list(traced.graph.nodes)
    items = list(graph.inputs)
    holders = [n for n in nodes if n.op == "placeholder"][: len(items) + len(incoming)]
    for position in incoming:
        y, name = graph.values[graph.outputs[position]], dy_name(position)
        items.append(Input(Value(name, y.dtype, y.shape), "grad", name))
    for node, item in zip(holders, items, strict=True):
        reader.inputs.append(item)
        reader.taken.add(item.value.name)
        reader.values[node] = item.value.name
    sources: dict[str, str] = {}
    for node in nodes:
        if node.op == "call_function":
            before, made = len(reader.ops), reader.maker(node)
            if free_unbacked_symbols(node.meta.get("val")):
                raise _not_for_every_size(made, "its gradient has a size that values decide")
            reader.call(node)
            for op in reader.ops[before:]:
                sources[op.output.name] = made.source if made else ""
    ops = tuple(replace(op, source=sources[op.output.name]) for op in reader.ops)
    (result,) = (n for n in nodes if n.op == "output")
    outputs = tuple("" if n is None else str(reader.values[n]) for n in result.args[0])
    joint = prune(Graph(graph.name, tuple(items), ops, outputs))
    values = {n.name: v for n, v in reader.values.items() if isinstance(v, str)}
    return verify(_name_gradients(joint, segment, backward, values))


def _name_gradients(
    joint: Graph, segment: Segment, backward: Backward, values: dict[str, str]
) -> Graph:
    """Outputs in their order, and backward values under the names of what they are.

    Outputs are the segment's own, `d_x` of each activation, `d_<param>`; those that have no
    gradient get an empty name in their place. values: names by traced node.
    """
    wanted, count = [i.value.name for i in segment.wanted], len(segment.graph.outputs)
    ys, grads = joint.outputs[:count], joint.outputs[count:]
    found = dict(zip(wanted, grads, strict=True))
    results: dict[str, str] = {}
    forward = set(joint.values) - made_backward(backward, values)
    for source, output in found.items():
        if output in joint.producer and output not in results:
            results[output] = free(f"d_{source}", forward | set(results.values()))
    entry = [i.value.name for i in segment.graph.inputs_of("activation")] or [""]
    params = [i.value.name for i in segment.graph.inputs_of("param")]
    outputs = (*ys, *(found.get(name, "") for name in (*entry, *params)))
    return rename(replace(joint, outputs=outputs), gradient_names(joint, backward, values, results))


def rename(graph: Graph, names: dict[str, str]) -> Graph:
    """The graph with values renamed."""

    def new(name: str) -> str:
        return names.get(name, name)

    ops = tuple(
        replace(
            op,
            inputs=tuple(new(n) for n in op.inputs),
            outputs=tuple(replace(v, name=new(v.name)) for v in op.outputs),
        )
        for op in graph.ops
    )
    return Graph(graph.name, graph.inputs, ops, tuple(new(n) for n in graph.outputs))
