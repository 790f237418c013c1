"""What capture relies on of torch's lazy graph modules."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from meshwright.ir.capture import export, exported
from meshwright.ir.capture.lazy_modules import lazy_modules


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(tokens)))


def _codes_of(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> tuple[object, int]:
    """What a call returns, and how often torch wrote the code of a graph module in it."""
    written, recompile = [], GraphModule.recompile
    with monkeypatch.context() as patch:
        patch.setattr(GraphModule, "recompile", lambda m: (written.append(1), recompile(m))[1])
        return call(), len(written)


def test_an_export_writes_less_code_and_gives_the_same_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capture = partial(export.trace, Rows, "rows", "f32", 7)
    found, few = _codes_of(capture, monkeypatch)
    monkeypatch.setattr(exported, "lazy_modules", nullcontext)
    same, many = _codes_of(capture, monkeypatch)
    assert found == same and few < many


def test_a_lazy_module_runs_when_it_is_called() -> None:
    with lazy_modules():
        made = make_fx(torch.sin)(torch.zeros(2))
    x = torch.rand(3)
    assert torch.equal(made(x), torch.sin(x))
