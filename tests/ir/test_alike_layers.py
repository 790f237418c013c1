"""Alike layers, of which capture traces one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from meshwright.ir.capture import alike, exported
from meshwright.ir.capture.export import trace
from meshwright.ir.text.graph_text import format_graph
from meshwright.models.load import load_model


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of layers that are copied."""
    found: list[str] = []
    plain = alike._Trace.copied

    def counted(self, tracer, layer, args):  # type: ignore[no-untyped-def]
        found.append(tracer.path_of(layer))
        return plain(self, tracer, layer, args)

    monkeypatch.setattr(alike._Trace, "copied", counted)
    return found


@contextmanager
def _each(module: nn.Module) -> Iterator[None]:
    yield


@pytest.mark.parametrize("name", ["tiny", "tiny-gemma2", "gpt2"])
def test_copied_layers_are_those_that_a_trace_of_each_makes(
    name: str, copied: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = load_model(name)
    found = trace(source.build, name, "bf16", source.vocab_size)
    assert copied
    monkeypatch.setattr(exported, "traced_once", _each)
    each = trace(source.build, name, "bf16", source.vocab_size)
    assert format_graph(found.graph) == format_graph(each.graph)
    assert found == each


class Layer(nn.Module):
    alike_once: ClassVar[bool] = True
    seen: ClassVar[float] = 1.0

    def __init__(self, scale: object = 1.0) -> None:
        super().__init__()
        self.up, self.scale = nn.Linear(8, 8), scale

    def forward(self, x: Tensor, times: float = 1.0) -> Tensor:
        scale = self.scale if isinstance(self.scale, float) else 2.0
        return x + times * scale * torch.tanh(self.up(x))


class Stack(nn.Module):
    def __init__(self, *layers: nn.Module, times: tuple[float, ...] = ()) -> None:
        super().__init__()
        self.table, self.times = nn.Embedding(16, 8), times
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(8, 16, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for index, layer in enumerate(self.layers):
            x = layer(x, *self.times[index : index + 1])
        return self.head(x)


class Constant(Layer):
    def forward(self, x: Tensor, times: float = 1.0) -> Tensor:
        return super().forward(x) * torch.tensor([1.0, 2.0] * 4)


class Through(Layer):
    def forward(self, x: Tensor, times: float = 1.0) -> Tensor:
        return x


def _hooked() -> Layer:
    layer = Layer()
    layer.up.register_forward_hook(lambda module, args, out: 2 * out)
    return layer


def _tied(*layers: Layer) -> Stack:
    for layer in layers[1:]:
        layer.up.weight = layers[0].up.weight
    return Stack(*layers)


STACKS = {
    "alike": (lambda: Stack(*(Layer() for _ in range(4))), 2),
    "another attribute": (lambda: Stack(*(Layer(float(k)) for k in range(4))), 0),
    "an object for an attribute": (lambda: Stack(*(Layer([1]) for _ in range(4))), 0),
    "another argument": (lambda: Stack(*(Layer() for _ in range(4)), times=(1.0, 2.0, 3.0)), 0),
    "tied parameters": (lambda: _tied(*(Layer() for _ in range(4))), 2),
    "another size": (lambda: Stack(Layer(), nn.Sequential(Layer()), Layer(), Layer()), 1),
    "a constant": (lambda: Stack(*(Constant() for _ in range(4))), 0),
    "nothing made": (lambda: Stack(*(Through() for _ in range(3)), Layer()), 0),
}


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_is_captured_as_if_each_layer_was_traced(
    name: str, copied: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    build, count = STACKS[name]
    found = trace(build, name, "f32", 16)
    assert len(copied) >= count and (count or not copied)
    monkeypatch.setattr(exported, "traced_once", _each)
    assert format_graph(found.graph) == format_graph(trace(build, name, "f32", 16).graph)


def test_classes_have_their_own_forwards_after_an_export() -> None:
    plain = Layer.forward
    with alike.traced_once(Stack(Layer(), Layer())):
        assert Layer.forward is not plain
    assert Layer.forward is plain


def test_a_layer_with_a_hook_looks_like_no_other() -> None:
    x = torch.ones(1, 8)
    assert alike._looks(Layer(), (x,)) == alike._looks(Layer(), (x,)) is not None
    assert alike._looks(_hooked(), (x,)) is None


def test_a_trace_of_torch_answers_what_copies_ask_of_it() -> None:
    """The tracer of an export has a module_stack and a path of every module; slots give nodes."""
    seen = []

    class Asks(Layer):
        def forward(self, x: Tensor, times: float = 1.0) -> Tensor:
            tracer = alike._Tracer.active()
            assert tracer is not None
            seen.append((tracer.path_of(self), tracer.node_of(x), tracer.last.op))
            return super().forward(x)

    trace(lambda: Stack(Asks()), "asks", "f32", 16)
    ((path, node, op),) = seen
    assert path.endswith("layers.0") and node is not None and op == "call_function"
    assert alike._Tracer.active() is None
