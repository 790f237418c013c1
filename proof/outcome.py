"""What one step gives, by the program and by the module alike."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from meshwright.ir.capture.own_loss import OwnLoss

IGNORED = -100  # a label that does not count


@dataclass(frozen=True)
class Batch:
    """A global batch. tokens, labels: int64 [rows, seq]. own_loss: None for the cross-entropy."""

    tokens: Tensor
    labels: Tensor
    own_loss: OwnLoss | None = None

    @property
    def label_count(self) -> int:
        return int((self.labels != IGNORED).sum())

    def permuted(self) -> "Batch":
        """Return the same rows in another order."""
        order = torch.arange(len(self.tokens)).roll(1).flip(0)
        return replace(self, tokens=self.tokens[order], labels=self.labels[order])

    def loss(self, logits: Tensor) -> Tensor:
        """Return the loss of logits [rows, seq, vocabulary], as PyTorch computes it; 0-dim."""
        if self.own_loss is not None:
            return self.own_loss.value(logits, self.labels)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        flat = wide.flatten(0, 1), self.labels.flatten()
        return F.cross_entropy(*flat, ignore_index=IGNORED, reduction="sum") / self.label_count


@dataclass(frozen=True)
class Outcome:
    """loss: mean over the labels that count. grads: by parameter; None where torch gives none."""

    loss: float
    grads: dict[str, Tensor | None]


def random_batch(
    rows: int,
    seq: int,
    vocab: int,
    seed: int,
    own_loss: OwnLoss | None = None,
    named: Sequence[int] = (),
) -> Batch:
    """Draw a batch of which the first row and some more labels do not count.

    named: tokens that the module may ask for. A third of all are drawn from these and from the
    first and last ids, where padding and ends of text lie, and a sixth repeat the one before.
    """
    generator = torch.Generator().manual_seed(seed)

    def drawn(most: int) -> Tensor:
        return torch.randint(0, most, (rows, seq), generator=generator)

    tokens, labels, kinds = drawn(vocab), drawn(vocab), drawn(6)
    known = {token for token in (0, 1, 2, 3, vocab - 1, *named) if 0 <= token < vocab}
    special = torch.tensor(sorted(known))[drawn(len(known))]
    tokens = torch.where(kinds < 2, special, tokens)
    tokens = torch.where(kinds == 5, tokens.roll(1, dims=1), tokens)
    labels[0, ::2] = IGNORED
    return Batch(tokens, labels, own_loss)
