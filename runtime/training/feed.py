"""This rank's rows of every global batch, as micro-batches on its device."""

import math

import torch

from ..checkpoint.manifest import State, any_rank, rank, text_of_rank_0
from ..data import Batch as Rows
from ..data import DataError, Prefetcher, Reader, open_reader
from ..engine import mesh
from ..engine.executor import Marks
from ..engine.inputs import BESIDE, batch_of, step_draws
from ..engine.layout import Layout
from ..engine.stage import Batch
from ..host import host_name
from .options import RunOptions


class Feed:
    """The batches of training; step s takes batch s + skipped of those behind `rest` rows.

    skipped: those that rollbacks passed over, less those by which a resume with larger batches or
    other data is behind its steps. rest: rows before the first batch, less than one holds, as a
    resume with other batches goes on at any row.
    """

    def __init__(self, options: RunOptions, layout: Layout, beacon: Marks) -> None:
        self.layout, self.seed = layout, options.seed
        self.skipped = self.rest = 0
        self._began, self._seen_before = 0, 0  # the step of the last restore, and tokens before it
        self.num_rows = layout.micro_batch * layout.num_microbatches
        self.global_batch = self.num_rows * mesh.count(*mesh.BATCH)
        self.first_row = mesh.index(*mesh.BATCH) * self.num_rows
        beacon.mark("DATA")
        self.reader = open_reader(
            options.data,
            global_batch=self.global_batch,
            seq=layout.seq,
            seed=options.seed,
            vocab=layout.vocab_size,
            reads=reads_beside(layout),
        )
        beacon.mark("AGREE")  # a rank that still opens it is what the others wait for
        _check_same(self.reader)
        self._batches = Prefetcher(self.reader, *self.rows)

    @property
    def rows(self) -> tuple[int, int]:
        """First row of this rank in the global batch, and the one past its last."""
        return self.first_row, self.first_row + self.num_rows

    @property
    def tokens(self) -> int:
        """Tokens of a global batch."""
        return self.global_batch * self.layout.seq

    def take(self, step: int) -> Rows:
        """Read this rank's rows of the batch of a step."""
        return self._batches.take(step + self.skipped)

    def micro_batches(self, rows: Rows, step: int = 0) -> list[Batch]:
        """Cut rows into micro-batches on the device, with the key of what the step draws."""
        device, draws = mesh.device(), step_draws(self.seed, step, mesh.device())
        places = torch.arange(self.first_row, self.first_row + len(rows.tokens))
        given = {"tokens": rows.tokens, "labels": rows.labels, "rows": places}
        given |= rows.others
        pieces = (part.split(self.layout.micro_batch) for part in given.values())
        batches = (dict(zip(given, piece, strict=True)) for piece in zip(*pieces, strict=True))
        return [
            batch_of(self.layout.inputs, draws=draws, **{n: x.to(device) for n, x in own.items()})
            for own in batches
        ]

    def samples(self, step: int) -> int:
        """Return the rows that are seen, or passed over, in all global batches before a step."""
        return (step + self.skipped) * self.global_batch + self.rest

    def tokens_seen(self, step: int) -> int:
        """Return the tokens of all steps before a step, of other batches and data too; what a
        rollback passed over is none of them."""
        return self._seen_before + (step - self._began) * self.tokens

    def position(self, step: int) -> dict:
        """Return where a stream goes on before a step."""
        return self.reader.state(step + self.skipped)

    def restore(self, state: State) -> None:
        """Go on from a checkpoint: at the row behind the tokens that were seen, also where batches
        had another size; with the first row of other data."""
        same = state.data_identity == self.reader.identity
        rows = math.ceil(state.samples * state.seq / self.layout.seq) if same else 0
        done, self.rest = divmod(rows, self.global_batch)
        self.skipped = done - state.step
        self._began, self._seen_before = state.step, state.tokens
        if same:
            self._batches.restore(done, state.data_position)
            self.reader.rest = self.rest
        else:
            self._batches.close()


def reads_beside(layout: Layout) -> dict[str, tuple[int, ...]]:
    """Return by role the sizes of a row of what a program reads beside its tokens."""
    sizes = {"S": layout.seq}
    return {
        asked.role: tuple(int(sizes.get(size, size)) for size in asked.shape[1:])
        for asked in layout.inputs
        if asked.role in BESIDE
    }


def _check_same(reader: Reader) -> None:
    """Raise DataError, on all ranks, where one opened other data: each opens its own host's."""
    own, first = reader.identity, text_of_rank_0(reader.identity)
    where = f"rank {rank()} on {host_name()}"
    problem = f"{where} reads {reader.name} of identity {own[:12]}, rank 0 of {first[:12]}"
    problem = any_rank(problem if own != first else "")
    if problem:
        raise DataError(f"{problem}; give all hosts the same data")
