"""The held-out loss, during a run and at its end."""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from ..data import (
    Batch,
    Corpus,
    DataError,
    check_tokenizers,
    check_vocab,
    eval_batches,
    held_out_corpus,
    num_eval_batches,
)
from ..engine.executor import Executor
from ..engine.layout import Layout
from ..metrics.step_log import StepLog
from ..optimizers.optimizer import Optimizer
from .feed import Feed
from .options import RunOptions


class Evaluated(NamedTuple):
    """eval_loss: the mean over `tokens` labels, in the first `batches` of all `batches_held_out`
    global batches that `data` holds."""

    eval_loss: float
    tokens: int
    batches: int
    batches_held_out: int
    data: str


class Evaluation:
    """Evaluations of one run. Missing data is refused now where the options ask for it, not at
    the first evaluation."""

    def __init__(self, options: RunOptions, layout: Layout, feed: Feed, own_loss: str) -> None:
        """own_loss: the name of the program's, "" for the cross-entropy."""
        self.options, self.layout, self.feed, self.own_loss = options, layout, feed, own_loss
        self._opened: Corpus | None = None
        self.last_loss: float | None = None
        if options.eval_every or options.eval_data:
            self._corpus()

    def due_after(self, step: int) -> bool:
        """Tell whether an evaluation comes after this step; not the one at the end of the run."""
        every, done = self.options.eval_every, step + 1
        return bool(every) and done % every == 0 and done < self.options.steps

    def log(self, step: int, executor: Executor[Optimizer], log: StepLog) -> None:
        """Evaluate after a step."""
        log.evaluation(step, **self.measure(executor)._asdict())

    def log_last(self, executor: Executor[Optimizer], log: StepLog) -> str:
        """Evaluate after the last step; return what to say of it."""
        try:
            found = self.measure(executor)
        except DataError as error:
            return f"no held-out loss: {error}"
        log.evaluation(self.options.steps - 1, **found._asdict())
        parts = f"{found.batches} of {found.batches_held_out} batches"
        loss = f"{found.eval_loss:.3f} {self._unit}"
        return f"held-out loss: {loss} ({found.tokens:,} tokens, {parts})"

    @property
    def _unit(self) -> str:
        """What the loss is counted in; of a loss of the user's own, which one it is."""
        if self.own_loss:
            return f"by {self.own_loss}"
        return "nats/byte" if self.feed.reader.vocab == 256 else "nats/token"

    def measure(self, executor: Executor[Optimizer]) -> Evaluated:
        """Evaluate the weights as they are."""
        corpus = self._corpus()
        total, count, batches = 0.0, 0, 0
        with torch.no_grad(), executor.optimizer.averaged():
            for rows in self._batches(corpus):
                pairs = self.feed.micro_batches(rows)
                total += executor.evaluate(pairs, rows.label_count) * rows.label_count
                count += rows.label_count
                batches += 1
        held_out = num_eval_batches(corpus, self.feed.global_batch, self.layout.seq)
        self.last_loss = total / count
        return Evaluated(self.last_loss, count, batches, held_out, corpus.name)

    def _corpus(self) -> Corpus:
        if self._opened is None:
            corpus = held_out_corpus(self.options.data, self.options.eval_data)
            check_vocab(corpus.name, corpus.vocab, self.layout.vocab_size)
            check_tokenizers((self.feed.reader, corpus))
            self._opened = corpus
        return self._opened

    def _batches(self, corpus: Corpus) -> Iterator[Batch]:
        start, stop = self.feed.rows
        return eval_batches(
            corpus,
            global_batch=self.feed.global_batch,
            seq=self.layout.seq,
            start=start,
            stop=stop,
            limit=self.options.eval_batches or None,
            vocab=self.layout.vocab_size,
        )
