"""The held-out loss, during a run and at its end."""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from ..data import (
    Batch,
    DataError,
    HeldOut,
    Part,
    check_tokenizers,
    check_vocab,
    open_held_out,
)
from ..engine.executor import Executor
from ..engine.layout import Layout
from ..metrics.step_log import StepLog
from ..optimizers.optimizer import Optimizer
from .feed import Feed, reads_beside
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
        self._opened: HeldOut | None = None
        self.last_loss: float | None = None
        if options.eval_every or options.eval_data:
            self._data()

    def due_after(self, step: int) -> bool:
        """Tell whether an evaluation comes after this step; not the one at the end of the run."""
        every, done = self.options.eval_every, step + 1
        return bool(every) and done % every == 0 and done < self.options.steps

    def log(self, step: int, executor: Executor[Optimizer], log: StepLog) -> None:
        """Evaluate after a step."""
        log.evaluation(step, **self.measure(executor)._asdict())

    def log_last(self, step: int, executor: Executor[Optimizer], log: StepLog) -> str:
        """Evaluate after the last step that was done; return what to say of it."""
        try:
            found = self.measure(executor)
        except DataError as error:
            return f"no held-out loss: {error}"
        log.evaluation(step, **found._asdict())
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
        data = self._data()
        total, count, batches = 0.0, 0, 0
        with torch.no_grad(), executor.optimizer.averaged():
            for rows in self._batches(data):
                given = self.feed.micro_batches(rows)
                total += executor.evaluate(given, rows.label_count) * rows.label_count
                count += rows.label_count
                batches += 1
        held_out = data.num_batches(self.feed.global_batch, self.layout.seq)
        self.last_loss = total / count
        return Evaluated(self.last_loss, count, batches, held_out, data.name)

    def _data(self) -> HeldOut:
        if self._opened is None:
            given = self.options.data, self.options.eval_data
            data = open_held_out(*given, self.layout.seq, reads_beside(self.layout))
            check_vocab(data.name, data.vocab, self.layout.vocab_size)
            check_tokenizers((self.feed.reader, data))
            self._opened = data
        return self._opened

    def _batches(self, data: HeldOut) -> Iterator[Batch]:
        limit = self.options.eval_batches or None
        sizes = self.feed.global_batch, self.layout.seq
        return data.batches(Part(*sizes, *self.feed.rows, limit))
