"""What a run gives: its losses, its evaluations, and where its files lie."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.runtime.training.past_run import LOG, PastRun, read_run

from .errors import one_class


@dataclass(frozen=True)
class EvaluationResult:
    """A held-out loss: the mean over `tokens` labels, after `step` was done, in the first `batches`
    of all `batches_held_out` global batches of `data`."""

    step: int
    loss: float
    tokens: int
    batches: int
    batches_held_out: int
    data: str


@dataclass(frozen=True)
class RunResult:
    """A run as its folder has it.

    state: finished, or stopped, which goes on by `resume`. exit_code: 0, or 75 where a signal
    stopped it. losses: of each step in order, NaN where one was not finite. last: the values of the
    log's last rows by name. checkpoints: folders, by step.
    """

    folder: Path
    state: str
    exit_code: int
    losses: tuple[float, ...]
    evaluations: tuple[EvaluationResult, ...]
    last: dict[str, Any]
    checkpoints: tuple[Path, ...]

    @staticmethod
    @one_class
    def load(folder: str | Path) -> "RunResult":
        """Read a run's folder. Raises MeshwrightError where it holds none."""
        return result_of(read_run(Path(folder)), 0)

    @property
    def loss(self) -> float:
        """Return the loss of the last step, NaN where none was done."""
        return self.losses[-1] if self.losses else math.nan

    @property
    def evaluation(self) -> EvaluationResult | None:
        """Return the last evaluation."""
        return self.evaluations[-1] if self.evaluations else None

    @property
    def log(self) -> Path:
        """Return the file of a row a step."""
        return self.folder / LOG


def result_of(run: PastRun, exit_code: int) -> RunResult:
    """Return what a run's folder says of it."""
    from meshwright.runtime.checkpoint.manifest import complete

    rows = run.rows
    return RunResult(
        run.folder,
        run.state,
        exit_code,
        tuple(math.nan if row["loss"] is None else row["loss"] for row in rows if "loss" in row),
        tuple(_evaluation(row) for row in rows if "eval_loss" in row),
        run.last,
        tuple(complete(run.folder / "checkpoints")),
    )


def _evaluation(row: dict[str, Any]) -> EvaluationResult:
    loss = row["eval_loss"]
    return EvaluationResult(
        row["step"],
        math.nan if loss is None else loss,
        row["eval_tokens"],
        row["eval_batches"],
        row["eval_batches_held_out"],
        row["eval_data"],
    )
