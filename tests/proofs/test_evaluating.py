"""A module that evaluates another way than it trains is named: held-out losses are not its own."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from meshwright.ir.capture.export import trace
from meshwright.proof.prove import Subject, prove

VOCAB = 32


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, 8), nn.Linear(8, VOCAB, bias=False)

    def middle(self, x: Tensor) -> Tensor:
        return F.dropout(torch.tanh(x), 0.0, self.training)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.middle(self.embed(tokens)))


class Asks(Model):
    def middle(self, x: Tensor) -> Tensor:
        if self.training:
            x = x * 3.0
        return torch.tanh(x)


class FailsInEval(Model):
    def middle(self, x: Tensor) -> Tensor:
        if not self.training:
            raise NotImplementedError("evaluation")
        return torch.tanh(x)


@pytest.mark.parametrize(
    ("module", "place"),
    [(Model, ""), (Asks, "middle of proofs/test_evaluating.py:"), (FailsInEval, "")],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_the_line_is_named_where_evaluation_parts(module: type[nn.Module], place: str) -> None:
    traced = trace(module, "module", "f32", VOCAB)
    found = prove(Subject("module", module, VOCAB, 16), traced)
    assert found.startswith(place) and bool(found) == bool(place)
