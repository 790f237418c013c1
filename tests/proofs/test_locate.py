"""A refusal names the first value that differs, its op, and its line."""

import re

import pytest
import torch
from proofs.zoo import Base
from torch import Tensor
from torch.nn import functional as F

import meshwright.codegen.emitters.call as call
import meshwright.codegen.emitters.pointwise as pointwise
from meshwright.ir.capture import export, functional
from meshwright.ir.capture.export import trace
from meshwright.ir.errors import ProofError
from meshwright.proof.prove import Subject, prove


class Divided(Base):
    """A size beside an operator, between lines that are right."""

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens).tanh()
        h = self.proj(h) / (tokens.shape[1] + 1)  # here: div.Tensor
        h = F.layer_norm(h, (12,))
        return self.head(h)


class Written(Base):
    """A write into a part."""

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.proj(self.embed(tokens))
        h[..., :4] = 2.0
        h = h.sin()  # here: sin
        return self.head(h)


class Compared(Base):
    """Each row is compared with the best of all rows."""

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.proj(self.embed(tokens))
        best = h.sum(-1).flatten().topk(2)[0].min()  # here: rows
        h = torch.where(h.sum(-1, keepdim=True) >= best, h, 0.5 * h)
        return self.head(h)


def _here(module: type[Base]) -> tuple[str, str]:
    """The line of a class that is marked, in the form of messages, and what the mark says."""
    lines = open(__file__).read().splitlines()
    first = lines.index(f"class {module.__name__}(Base):")
    number = next(n for n in range(first, len(lines)) if "# here: " in lines[n])
    return f"proofs/test_locate.py:{number + 1}", lines[number].partition("# here: ")[2]


def _refusal(module: type[Base]) -> str:
    with pytest.raises(ProofError) as caught:
        prove(Subject("m", module, 37, None), trace(module, "m", "f32", 37))
    message = str(caught.value)
    assert "\n" not in message
    return message


def _no_brackets(patch: pytest.MonkeyPatch) -> None:
    for module in (call, pointwise):
        patch.setattr(module, "as_term", lambda text: text, raising=False)


def _lost_write(patch: pytest.MonkeyPatch) -> None:
    kept = functional.Functionalise._put

    def put(self, parent, chain, value, writer):
        return parent if chain else kept(self, parent, chain, value, writer)

    patch.setattr(functional.Functionalise, "_put", put)


@pytest.mark.parametrize("module, plant", [(Divided, _no_brackets), (Written, _lost_write)])
def test_the_first_value_is_named(module, plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    line, op = _here(module)
    said = rf"The first value that differs is \S+, of {re.escape(op)} at {re.escape(line)}: by \d"
    assert re.search(said, message := _refusal(module)), message


def test_the_line_that_mixes_rows_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "check_rows", lambda graph: None)
    line, _ = _here(Compared)
    said = rf"{re.escape(line)} gives 1 of 3 rows values that differ by \d"
    assert re.search(said, message := _refusal(Compared)), message
