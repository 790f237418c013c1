"""Biases by which routers choose experts, updated by how the batch was routed.

DeepSeek-V3's routers (DeepSeek-AI 2024, arXiv 2412.19437, section 2.1.2; Wang et al. 2024, arXiv
2408.15664) add to the score of each expert a bias that decides the choice alone: the chosen
experts' weights are made of the scores. The loss gives it no gradient. After a step it goes up by
a rate where an expert was chosen less than the mean, and down where more.

In a graph such a bias is a frozen parameter that reaches the loss through indices alone. What it
gets in place of a gradient is the excess of choices, E times those of an expert less all choices:
a sum over tokens, so that micro-batches and ranks add it up as they do gradients. The op
`mw.biased_choice` brings it, behind the first number that is made of the indices.
"""

from dataclasses import dataclass, replace

from ..dtypes import FLOATS, HALVES
from ..errors import CaptureError
from ..graph import Graph, Input, Op, Value, text_hash, verify
from ..sizes import Shape, num_elements
from ..text.graph_text import format_graph
from ..traced import Traced
from .backward import free
from .export import segments_of
from .freezing import without_gradient


@dataclass(frozen=True)
class _Choice:
    """The name of indices that a bias chose, and of the first value made of them that has a
    gradient."""

    ids: str
    value: str


def with_updated_biases(traced: Traced) -> Traced:
    """Return a capture whose routers' biases are trained, by the excess of choices.

    Raises CaptureError where the model has no such bias.
    """
    graph = traced.graph
    found = {i: choices for i in graph.inputs_of("param") if (choices := _choices(graph, i))}
    if not found:
        raise CaptureError(
            f"model {graph.name}: 0 of its {len(graph.inputs_of('param'))} parameters are biases "
            "by which a router only chooses: an element for each expert, added to scores of which "
            "topk takes the indices and nothing else, and no buffer; leave out --update-router-bias"
        )
    for bias, choices in found.items():
        graph = _trained(graph, bias, choices)
    graph = verify(graph)
    segmented, joints = segments_of(graph, traced.lengths)
    idle = set(without_gradient(graph, segmented, joints)) & {bias.ref for bias in found}
    if idle:
        raise CaptureError(
            f"model {graph.name}: the loss depends on nothing that router bias {min(idle)} chooses"
        )
    identity = text_hash(format_graph(graph))
    said = _said(graph, len(found))
    return replace(
        traced,
        graph=graph,
        segmented=segmented,
        joints=joints,
        graph_hash=identity,
        warnings=(*traced.warnings, said),
    )


def _said(graph: Graph, count: int) -> str:
    """Say what is updated, and what is not: a bias in another form may be among these."""
    others = [item.ref for item in graph.inputs_of("param") if not item.trainable]
    held = f"; {len(others)} parameters stay as they are, such as {others[0]}" if others else ""
    return f"{count} biases of routers are updated by how their choices fall{held}"


def _choices(graph: Graph, item: Input) -> list[_Choice]:
    """Return what a parameter chooses; nothing where it is no bias of a router."""
    experts = num_elements(item.value.shape)
    if item.trainable or item.value.dtype not in FLOATS or experts not in item.value.shape:
        return []
    reached, chosen = {item.value.name}, []
    for op in graph.ops:
        if reached.isdisjoint(op.inputs):
            continue
        for value in op.outputs:
            if value.dtype in FLOATS:
                reached.add(value.name)
            elif graph.users[value.name] and _chooses(graph, op, value, experts):
                chosen.append(value.name)
    if not reached.isdisjoint(graph.outputs):  # a weight, by which the loss goes
        return []
    followed = _with_gradient(graph)
    found = (_value_of(graph, ids, followed - reached) for ids in chosen)
    return [choice for choice in found if choice]


def _chooses(graph: Graph, op: Op, value: Value, experts: object) -> bool:
    """Tell whether a value holds indices of some experts, taken along the last dim of scores."""
    scores = graph.values[op.inputs[0]].shape if op.inputs and op.inputs[0] else ()
    taken = value.dtype in ("i64", "i32") and bool(scores) and scores[-1] == experts
    return taken and value.shape[: len(scores) - 1] == scores[:-1] and not _ends_in(value, scores)


def _ends_in(value: Value, scores: Shape) -> bool:
    """Tell whether all experts are taken, as a sort does."""
    return len(value.shape) == len(scores) and value.shape[-1] == scores[-1]


def _with_gradient(graph: Graph) -> set[str]:
    """Return the names of values from which the loss is made through numbers alone."""
    found = {name for name in graph.outputs if name}
    for op in reversed(graph.ops):
        if any(value.name in found for value in op.outputs):
            floats = (name for name in op.inputs if name and graph.values[name].dtype in FLOATS)
            found.update(floats)
    return found


def _value_of(graph: Graph, ids: str, followed: set[str]) -> _Choice | None:
    """Return indices with the first value of `followed` that is made of them."""
    reached = {ids}
    for op in graph.ops:
        if reached.isdisjoint(op.inputs):
            continue
        if op.output.name in followed and op.output.dtype in FLOATS:
            return _Choice(ids, op.output.name)
        reached.update(v.name for v in op.outputs if v.dtype not in FLOATS)
    return None


def _trained(graph: Graph, bias: Input, choices: list[_Choice]) -> Graph:
    """Return the graph with a bias trained by its choices, itself in float32 at least."""
    wide = replace(bias.value, dtype="f32") if bias.value.dtype in HALVES else bias.value
    ops, taken = list[Op](), set(graph.values)
    inputs = tuple(
        replace(item, value=wide, trainable=True) if item == bias else item for item in graph.inputs
    )
    names: dict[str, str] = {}
    if wide != bias.value:
        narrow = replace(bias.value, name=free(f"{bias.value.name}_narrow", taken))
        attrs = (("dtype", narrow.dtype),)
        ops.append(Op("to.dtype", (wide.name,), (narrow,), attrs))
        names[wide.name] = narrow.name
    of_value = {choice.value: choice.ids for choice in choices}
    for op in graph.ops:
        ops.append(replace(op, inputs=tuple(names.get(name, name) for name in op.inputs)))
        for value in op.outputs:
            if value.name in of_value:
                counted = replace(value, name=free(f"{value.name}_chosen", taken))
                given = (value.name, of_value[value.name], wide.name)
                ops.append(Op("mw.biased_choice", given, (counted,), (), op.source))
                names[value.name] = counted.name
    return Graph(graph.name, inputs, tuple(ops), graph.outputs)
