"""What an evaluation reads: the held-out windows of a corpus, or rows by number, in their order."""

from collections.abc import Iterator
from typing import Protocol

from ..identity import TokenizerIdentity
from .batches import Batch, eval_batches, num_eval_batches
from .corpus import Corpus
from .numbered import Part


class HeldOut(Protocol):
    """Batches of data that is read once, in its own order."""

    @property
    def name(self) -> str: ...
    @property
    def vocab(self) -> int: ...
    @property
    def tokenizer(self) -> TokenizerIdentity | None: ...

    def num_batches(self, global_batch: int, seq: int) -> int:
        """Return the global batches without a limit."""
        ...

    def batches(self, part: Part) -> Iterator[Batch]:
        """Yield a part of each; the end is padded with rows of which no label counts."""
        ...


class HeldOutWindows:
    """Every token of a corpus but the first as a label, once."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus, self.name, self.vocab = corpus, corpus.name, corpus.vocab
        self.tokenizer = corpus.tokenizer

    def num_batches(self, global_batch: int, seq: int) -> int:
        return num_eval_batches(self.corpus, global_batch, seq)

    def batches(self, part: Part) -> Iterator[Batch]:
        return eval_batches(self.corpus, **part._asdict())
