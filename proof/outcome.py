"""What one step gives, by the program and by the module alike."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from meshwright.ir.capture.own_loss import OwnLoss

from .draws import Site, drawn

IGNORED = -100  # a label that does not count
NOTHING = -1  # a token that is none


@dataclass(frozen=True)
class Batch:
    """A global batch. tokens, labels: int64 [rows, seq]. own_loss: None for the cross-entropy.

    others: by role, what a model reads beside tokens. rows: int64 [rows], by which each row's
    dropouts are drawn. sites: the model's dropouts.
    """

    tokens: Tensor
    labels: Tensor
    rows: Tensor
    own_loss: OwnLoss | None = None
    sites: Mapping[int, Site] = field(default_factory=dict)
    others: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def label_count(self) -> int:
        return int((self.labels != IGNORED).sum())

    def permuted(self) -> "Batch":
        """Return the same rows in another order."""
        order = torch.arange(len(self.tokens)).roll(1).flip(0)
        return self.only(order)

    def only(self, order: Tensor | slice) -> "Batch":
        """Return some rows, in the order of `order`."""
        own = {name: getattr(self, name)[order] for name in ("tokens", "labels", "rows")}
        others = {role: part[order] for role, part in self.others.items()}
        return replace(self, others=others, **own)

    def drawing(self) -> AbstractContextManager[None]:
        """Let the dropouts of a module that is called on these rows be those of its program."""
        return drawn(self.sites, self.rows, self.tokens.shape[1])

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
    sites: Mapping[int, Site] | None = None,
    alike: bool = False,
    reads: Mapping[str, tuple[int, ...]] | None = None,
    adjoins: bool = False,
) -> Batch:
    """Draw a batch of which the first row and some more labels do not count.

    named: tokens that the module may ask for. A third of all are drawn from these and from the
    first and last ids, where padding and ends of text lie, and a sixth repeat the one before.
    alike: of the last third of the rows, let each be of one such token alone, as a row of padding.
    reads: the sizes of a row of each role that the model reads beside tokens. A source is of rows
    of several lengths, and no token comes before the first label.
    """
    generator = torch.Generator().manual_seed(seed)

    def drawn(most: int) -> Tensor:
        return torch.randint(0, most, (rows, seq), generator=generator)

    tokens, labels, kinds = drawn(vocab), drawn(vocab), drawn(6)
    known = {token for token in (0, 1, 2, 3, vocab - 1, *named) if 0 <= token < vocab}
    special = torch.tensor(sorted(known))[drawn(len(known))]
    tokens = torch.where(kinds < 2, special, tokens)
    tokens = torch.where(kinds == 5, tokens.roll(1, dims=1), tokens)
    if own_loss is not None:  # which may treat labels by their ids
        labels = torch.where(kinds == 2, special, labels)
    if alike:
        for row, token in zip(range(rows // 3), (0, *named, 1, 2), strict=False):
            tokens[-1 - row] = token
    labels[0, ::2] = IGNORED
    batch = Batch(tokens, labels, torch.arange(rows), own_loss, sites or {})
    if "source" in (reads or {}):
        return _with_source(batch, drawn(vocab), generator)
    return _with_images(batch, reads or {}, generator, adjoins)


def _with_source(batch: Batch, ids: Tensor, generator: torch.Generator) -> Batch:
    rows, seq = ids.shape
    lengths = torch.randint(1, seq + 1, (rows, 1), generator=generator)
    ids = ids.where(torch.arange(seq) < lengths, torch.tensor(NOTHING))
    batch.tokens[:, 0] = NOTHING
    return replace(batch, others={"source": ids})


def _with_images(
    batch: Batch, reads: Mapping[str, tuple[int, ...]], generator: torch.Generator, adjoins: bool
) -> Batch:
    """Draw images, and places anywhere of the tokens that stand for them, or of the first.

    Pixels are eighths below 1, which every dtype of a plan holds.
    """
    rows, seq = batch.tokens.shape
    others: dict[str, Tensor] = {}
    if sizes := reads.get("images"):
        pixels = torch.randint(-7, 8, (rows, *sizes), generator=generator)
        others["images"] = pixels.double() / 8
    if sizes := reads.get("places"):
        orders = torch.rand(rows, seq, generator=generator).argsort(1)
        others["places"] = orders[:, : sizes[0]].sort(1).values
        if adjoins:
            first = torch.randint(0, seq - sizes[0] + 1, (rows, 1), generator=generator)
            others["places"] = first + torch.arange(sizes[0])
    return replace(batch, others=others)
