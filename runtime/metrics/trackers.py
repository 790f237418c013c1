"""Where rows of the log go besides metrics.jsonl: TensorBoard or Weights & Biases, if asked for."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from ..atomic_file import write_atomic

TRACKERS = ("none", "tensorboard", "wandb")


class TrackerError(ValueError):
    """A tracker whose library is not installed."""


class Tracker(Protocol):
    """Receiver of rows as they are logged, numbers by name; null ones are left out."""

    def row(self, step: int, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...


def check_tracker(name: str) -> None:
    """Raise TrackerError where the library is missing; it is looked for, not imported."""
    found = find_spec(name) if name != "none" else None
    # One without an origin is a folder of that name, such as wandb leaves where it ran.
    if name != "none" and (found is None or found.origin is None):
        raise TrackerError(_missing(name))


def open_tracker(name: str, out: Path, config: dict[str, Any], first: int) -> Tracker | None:
    """The tracker called `name` for the run in `out`; None for "none".

    first: the step that comes next; what a resumed run had logged from it on is replaced.
    Raises TrackerError where its library is missing.
    """
    if name == "none":
        return None
    return _TensorBoard(out, first) if name == "tensorboard" else _Wandb(out, config)


def _missing(name: str) -> str:
    return f"--track {name}: {name} is not installed; pip install {name}, or --track none"


class _TensorBoard:
    """Event files in OUT/tensorboard."""

    def __init__(self, out: Path, first: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise TrackerError(_missing("tensorboard")) from None
        self.writer = SummaryWriter(out / "tensorboard", purge_step=first)

    def row(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class _Wandb:
    """A run named after OUT, which a resumed run goes on with: OUT/wandb.id keeps its id.

    Project and key come from wandb's own settings. The step is a value like others, and the axis of
    all: wandb's own step never goes back, as a run does that resumes or rolls back.
    """

    def __init__(self, out: Path, config: dict[str, Any]) -> None:
        try:
            import wandb
        except ImportError:
            raise TrackerError(_missing("wandb")) from None
        kept = out / "wandb.id"
        known = kept.read_text().strip() if kept.exists() else None
        self.run = wandb.init(dir=out, name=out.name, id=known, config=config, resume="allow")
        write_atomic(kept, self.run.id + "\n")
        self.run.define_metric("*", step_metric="train_step")

    def row(self, step: int, values: dict[str, float]) -> None:
        self.run.log({"train_step": step, **values})

    def close(self) -> None:
        self.run.finish()
