"""Losses of the user's own: as in plain PyTorch under every plan, or refused."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from equivalence import oracle
from equivalence.cases import Case, ModelDraw
from equivalence.draws import DrawnModel
from equivalence.law import Court
from equivalence.pool import Pool
from torch import Tensor, nn
from torch.nn import functional as F

from meshwright.ir.capture.export import trace
from meshwright.ir.capture.own_loss import measured
from meshwright.ir.errors import CaptureError

VOCAB, DIM = 31, 12


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(2))
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        for block in self.blocks:
            h = h + torch.tanh(block(h)) + 0.1 * h.cumsum(1)
        return self.head(h)


def smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    """As torch has it, a mean over the labels that count."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)


def with_z(logits: Tensor, labels: Tensor) -> Tensor:
    """By hand: a focal cross-entropy and a z-loss."""
    counts = labels != -100
    picked = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    each = -picked * (1 - picked.exp()) ** 2 + 1e-2 * logits.logsumexp(-1) ** 2
    return (each * counts).sum() / counts.sum()


def summed(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


LOSSES = (smoothed, with_z, summed)
PLANS = {
    "dp": {"dp": 2, "accumulation": 2, "zero": 2},
    "pp": {"pp": 2, "accumulation": 2},
    "cp": {"cp": 2, "recompute": "all"},
    "tp": {"tp": 2, "shard_weights": True},
}


@pytest.fixture(scope="module")
def court(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Court:
    made = Court(Path(tmp_path_factory.mktemp("losses")), pool)
    for number, loss in enumerate(LOSSES):
        draw, name = _draw(number), f"with-{loss.__name__}"
        made.models[draw] = DrawnModel(name, VOCAB, Small, Small)
        own = measured(loss.__name__, loss, VOCAB)
        made.traces[draw, "f64", ()] = trace(Small, name, "f64", VOCAB, loss=own)
    return made


def _draw(number: int) -> ModelDraw:
    return ModelDraw("losses", False, number, 0)


@pytest.mark.parametrize(
    ("number", "plan"), [(0, "dp"), (1, "dp"), (2, "dp"), (0, "cp"), (1, "pp"), (2, "tp")]
)
def test_it_equals_plain_pytorch(
    number: int, plan: str, court: Court, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows with labels that do not count, more of them in some micro-batches than in others."""
    own = LOSSES[number]
    monkeypatch.setattr(oracle, "_loss", lambda module, x, labels: own(module(x), labels))
    words = {"micro_batch": 2, "seq": 8, "steps": 2} | PLANS[plan]
    court.try_case(Case(number=3100 + number, seed=0, model=_draw(number), **words))


def test_no_labels_that_count_give_no_loss_and_no_gradient() -> None:
    """A part of a batch may hold none, of which there is no mean."""
    logits = torch.randn(2, 3, VOCAB, requires_grad=True)
    labels = torch.full((2, 3), -100)
    total = measured("smoothed", smoothed, VOCAB).total(logits, labels)
    (grad,) = torch.autograd.grad(total, logits)
    assert total.item() == 0.0 and not grad.any()


def _without_padding(logits: Tensor, labels: Tensor, padding: int = 7) -> Tensor:
    each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    counts = (labels.flatten() != padding) & (labels.flatten() != -100)
    return (each * counts).sum() / counts.sum()


_ENDS_TEXT = 11
MANY = 20_000  # labels, of which drawn ones hold a given one next to never


def _weighed(logits: Tensor, labels: Tensor) -> Tensor:
    weight = torch.ones_like(logits[0, 0])
    weight[_ENDS_TEXT] = 0.1
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), weight=weight)


def _flooded(logits: Tensor, labels: Tensor) -> Tensor:
    """Linear in each row's loss until that is small."""
    mean = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    return (mean - 0.1).abs() + 0.1


def _capped(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten()).clamp(max=12.0)


@pytest.mark.parametrize("loss", [_without_padding, _weighed, _flooded, _capped])
def test_a_loss_that_adds_up_on_most_labels_alone_is_refused(
    loss: Callable[[Tensor, Tensor], Tensor],
) -> None:
    with pytest.raises(CaptureError, match="plans cut a batch into parts"):
        measured("rare", loss, MANY)


REFUSED: dict[str, tuple[Callable[[Tensor, Tensor], object], str]] = {
    "mean of rows": (
        lambda x, y: torch.stack([smoothed(x[n:][:1], y[n:][:1]) for n in range(len(x))]).mean(),
        "of 4 rows is .*; of its parts, 1 row and 3, the mean by labels that count .* is .* and "
        "the sum .*: plans cut a batch into parts",
    ),
    "mean of all": (lambda x, y: x.logsumexp(-1).mean(), "the mean by labels that count"),
    "each": (lambda x, y: x.logsumexp(-1), r"returns torch.float64 of shape \[1, 6\]"),
    "failing": (
        lambda x, y: x @ y,
        r"fails on logits \[1, 6, 31\] and labels \[1, 6\]: RuntimeErr",
    ),
    "more of all": (
        lambda x, y: smoothed(x, y) + x.logsumexp(-1).mean(),
        "where no label is -100 it is the mean, so see what positions of that label add to it",
    ),
    "ignoring another": (
        lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten(), ignore_index=5),
        "-100 is out of bounds; labels that do not count are -100$",
    ),
    "learning": (nn.Linear(3, 2), "has 2 parameters, which nothing would train"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_add_up_is_refused(name: str) -> None:
    loss, said = REFUSED[name]
    with pytest.raises(CaptureError, match=re.compile(said)) as caught:
        measured(name, loss, VOCAB)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_the_coverage_names_it(court: Court) -> None:
    for number, kind in enumerate(("mean", "mean", "sum")):
        (said,) = [w for w in court.traces[_draw(number), "f64", ()].warnings if "logit" in w]
        assert said.endswith(f"{LOSSES[number].__name__}, a {kind} over the labels that count")
