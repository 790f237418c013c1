"""What one step gives, by the program and by the module alike."""

from dataclasses import dataclass

import torch
from torch import Tensor

IGNORED = -100  # a label that does not count


@dataclass(frozen=True)
class Batch:
    """A global batch. tokens, labels: int64 [rows, seq]."""

    tokens: Tensor
    labels: Tensor

    @property
    def label_count(self) -> int:
        return int((self.labels != IGNORED).sum())

    def permuted(self) -> "Batch":
        """Return the same rows in another order."""
        order = torch.arange(len(self.tokens)).roll(1).flip(0)
        return Batch(self.tokens[order], self.labels[order])


@dataclass(frozen=True)
class Outcome:
    """loss: mean over the labels that count. grads: by parameter; None where torch gives none."""

    loss: float
    grads: dict[str, Tensor | None]


def random_batch(rows: int, seq: int, vocab: int, seed: int) -> Batch:
    """Draw a batch of which the first row and some more labels do not count."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, vocab, (rows, seq), generator=generator)
    labels = torch.randint(0, vocab, (rows, seq), generator=generator)
    labels[0, ::2] = IGNORED
    return Batch(tokens, labels)
