"""The held-out loss, during a run and at its end."""

from collections.abc import Iterator

import torch

from ..data import (
    Batch,
    Corpus,
    DataError,
    check_tokenizers,
    check_vocab,
    eval_batches,
    held_out_corpus,
)
from ..engine.executor import Executor
from ..engine.layout import Layout
from ..metrics.step_log import StepLog
from ..optimizers.optimizer import Optimizer
from .feed import Feed
from .options import RunOptions


class Evaluation:
    """Evaluations of one run. Missing data is refused now where the options ask for it, not at
    the first evaluation."""

    def __init__(self, options: RunOptions, layout: Layout, feed: Feed) -> None:
        self.options, self.layout, self.feed = options, layout, feed
        self._opened: Corpus | None = None
        if options.eval_every or options.eval_data:
            self._corpus()

    def due_after(self, step: int) -> bool:
        """Tell whether an evaluation comes after this step; not the one at the end of the run."""
        every, done = self.options.eval_every, step + 1
        return bool(every) and done % every == 0 and done < self.options.steps

    def log(self, step: int, executor: Executor[Optimizer], log: StepLog) -> None:
        """Evaluate after a step."""
        loss, tokens = self.loss(executor)
        log.evaluation(step, eval_loss=loss, tokens=tokens)

    def log_last(self, executor: Executor[Optimizer], log: StepLog) -> str:
        """Evaluate after the last step; return what to say of it."""
        try:
            loss, tokens = self.loss(executor)
        except DataError as error:
            return f"no held-out loss: {error}"
        log.evaluation(self.options.steps - 1, eval_loss=loss, tokens=tokens)
        unit = "nats/byte" if self.feed.reader.vocab == 256 else "nats/token"
        return f"held-out loss: {loss:.3f} {unit} ({tokens:,} tokens)"

    def loss(self, executor: Executor[Optimizer]) -> tuple[float, int]:
        """Return the mean loss over held-out tokens, and how many."""
        corpus = self._corpus()
        total, count = 0.0, 0
        with torch.no_grad(), executor.optimizer.averaged():
            for rows in self._batches(corpus):
                pairs = self.feed.micro_batches(rows)
                total += executor.evaluate(pairs, rows.label_count) * rows.label_count
                count += rows.label_count
        return total / count, count

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
