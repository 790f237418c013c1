"""Which parameters are embeddings and heads: matrices that Muon leaves to AdamW."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from meshwright.ir.capture.export import trace
from meshwright.ir.capture.own_loss import OwnLoss, measured
from meshwright.ir.tables import tables_among

VOCAB, DIM = 37, 16


class Plain(nn.Module):
    """A table, a hidden matrix and a head without a bias."""

    bias = False

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.hidden = nn.Linear(DIM, DIM, bias=False)
        self.head = nn.Linear(DIM, VOCAB, bias=self.bias)

    def rows(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.rows(tokens)
        return self.head(x + self.hidden(x))


class Biased(Plain):
    bias = True


class Divided(Plain):
    def forward(self, tokens: Tensor) -> Tensor:
        return torch.tanh(super().forward(tokens) / 2.0) * 30.0


class ByMatmul(Plain):
    def forward(self, tokens: Tensor) -> Tensor:
        x = self.rows(tokens)
        return (x + self.hidden(x)) @ self.head.weight.t() / 2.0


class Indexed(Plain):
    def rows(self, tokens: Tensor) -> Tensor:
        return self.embed.weight[tokens]


class Scaled(Plain):
    def rows(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.embed.weight * 4.0)


class Placed(Plain):
    """A table of places beside that of tokens, picked by a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(64, DIM))

    def rows(self, tokens: Tensor) -> Tensor:
        at = torch.arange(tokens.shape[1], device=tokens.device)
        return self.embed(tokens) + self.places[at]


def bits(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten()) / 0.6931471805599453


@pytest.mark.parametrize("loss", [None, measured("bits", bits, VOCAB)], ids=["own", "bits"])
@pytest.mark.parametrize(
    "module", [Plain, Biased, Divided, ByMatmul, Indexed, Scaled, Placed], ids=lambda m: m.__name__
)
def test_a_hidden_matrix_alone_is_none(module: type[Plain], loss: OwnLoss | None) -> None:
    traced = trace(module, "tables", "f32", VOCAB, loss=loss)
    uses = [(traced.joints[i.segment], i.params) for i in traced.segmented.instances]
    matrices = {name for name, p in module().named_parameters() if p.ndim == 2}
    assert tables_among(uses) & matrices == matrices - {"hidden.weight"}
