"""Where rows of the log go besides metrics.jsonl: TensorBoard or Weights & Biases, if asked for."""

from pathlib import Path
from typing import Any, Protocol

TRACKERS = ("none", "tensorboard", "wandb")


class TrackerError(ValueError):
    """A tracker whose library is not installed."""


class Tracker(Protocol):
    """Takes rows as they are logged, numbers by name; null ones are left out."""

    def row(self, step: int, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...


def open_tracker(name: str, out: Path, config: dict[str, Any]) -> Tracker | None:
    """The tracker called `name` for the run in `out`; None for "none".

    Raises TrackerError where its library is missing.
    """
    if name == "none":
        return None
    return _TensorBoard(out) if name == "tensorboard" else _Wandb(out, config)


def _missing(name: str) -> str:
    return f"--track {name}: {name} is not installed; pip install {name}, or --track none"


class _TensorBoard:
    """Event files in OUT/tensorboard."""

    def __init__(self, out: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise TrackerError(_missing("tensorboard")) from None
        self.writer = SummaryWriter(out / "tensorboard")

    def row(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class _Wandb:
    """A run named after OUT; project and key come from wandb's own settings."""

    def __init__(self, out: Path, config: dict[str, Any]) -> None:
        try:
            import wandb
        except ImportError:
            raise TrackerError(_missing("wandb")) from None
        self.run = wandb.init(dir=out, name=out.name, config=config, resume="allow")

    def row(self, step: int, values: dict[str, float]) -> None:
        self.run.log(values, step=step)

    def close(self) -> None:
        self.run.finish()
