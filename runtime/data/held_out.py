"""What an evaluation reads: the held-out windows of a corpus, or held-out pairs, in their order."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from ..identity import TokenizerIdentity
from .batches import Batch, eval_batches, num_eval_batches
from .corpus import Corpus
from .pairs import Pairs, batch_of_pairs


class Part(NamedTuple):
    """Rows start..stop of each global batch. limit: global batches at most, None for all."""

    global_batch: int
    seq: int
    start: int
    stop: int
    limit: int | None = None


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


class HeldOutPairs:
    """Every pair once."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs, self.name, self.vocab = pairs, pairs.name, pairs.vocab
        self.tokenizer = pairs.tokenizer

    def num_batches(self, global_batch: int, seq: int) -> int:
        return -(-self.pairs.count // global_batch)

    def batches(self, part: Part) -> Iterator[Batch]:
        for batch in range(self.num_batches(part.global_batch, part.seq))[: part.limit]:
            rows = np.arange(part.global_batch) + batch * part.global_batch
            count = int(self.pairs.targets(rows[rows < self.pairs.count], part.seq).sum())
            yield batch_of_pairs(self.pairs, rows[part.start : part.stop], part.seq, count)
