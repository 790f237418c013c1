"""A user's own code at named points of a run.

`--callback py:module:name` names a class, made once a rank without arguments, or an object; each
method that is called as a point is called there with an Event. A plain function is called as
on_step_end. Rank 0 calls them; where a class says `every_rank = True`, all ranks do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..own_code import OwnCodeError, load_named, said_of

# on_save: a checkpoint is whole on disk. on_stop: the run ended, finished or stopped.
POINTS = ("on_start", "on_step_end", "on_evaluation", "on_save", "on_stop")
_FUNCTION = "on_step_end"


@dataclass
class Requests:
    """Requests of the callbacks of this rank, until all ranks have done them."""

    stop: bool = False
    save: bool = False


@dataclass(frozen=True)
class Event:
    """A point of a run, with what is known there; numbers are of the last step that was done.

    point: its name. step: the last step done, counted from 0; at on_start the first to be done.
    steps: of the whole run. rank: of this process. out: the run's folder. loss: of the global
    batch. grad_norm: before clipping. lr: the learning rate. tokens: of the step; tokens_seen: of
    all steps. step_ms: of the step; elapsed_s: since training began here. eval_loss: the last
    held-out loss. checkpoint: the newest that is whole. What is not known yet is None.
    """

    point: str
    step: int
    steps: int
    rank: int
    out: Path
    loss: float | None = None
    grad_norm: float | None = None
    lr: float | None = None
    tokens: int | None = None
    tokens_seen: int | None = None
    step_ms: float | None = None
    elapsed_s: float | None = None
    eval_loss: float | None = None
    checkpoint: Path | None = None
    requests: Requests = field(default_factory=Requests, repr=False)

    def request_stop(self) -> None:
        """Ask all ranks to save and end the run after the next step."""
        self.requests.stop = True

    def request_save(self) -> None:
        """Ask all ranks for a checkpoint after the next step."""
        self.requests.save = True


_OF_A_STEP = "step loss grad_norm lr tokens tokens_seen step_ms elapsed_s".split()
Point = Callable[[Event], object]


class Callbacks:
    """The callbacks of one rank. event: what is known so far.

    Raises OwnCodeError for a name that leads to no callback, and where one fails.
    """

    def __init__(self, specs: Sequence[str], event: Event) -> None:
        self.event, self.requests = event, event.requests
        loaded = {spec: load_named(spec, "--callback") for spec in specs}
        points = {spec: _points(spec, found) for spec, found in loaded.items()}
        self._called = {
            spec: points[spec]
            for spec, found in loaded.items()
            if event.rank == 0 or getattr(found, "every_rank", False)
        }

    def step_end(self, row: dict[str, Any]) -> None:
        """Call on_step_end. row: of the step, as the log has it."""
        self.call("on_step_end", **{name: row[name] for name in _OF_A_STEP})

    def call(self, point: str, **known: Any) -> None:
        """Call what stands at a point. known: fields of the event that are new."""
        self.event = replace(self.event, point=point, **known)
        for spec, points in self._called.items():
            if point in points:
                self._call(spec, points[point])

    def _call(self, spec: str, function: Point) -> None:
        try:
            function(self.event)
        except Exception as error:
            raise OwnCodeError(
                f"--callback {spec} failed in {self.event.point} of step {self.event.step}: "
                f"{said_of(error)}"
            ) from error


def _points(spec: str, found: Any) -> dict[str, Point]:
    points = {name: getattr(found, name) for name in POINTS if hasattr(found, name)}
    if points:
        return points
    if not callable(found):
        raise OwnCodeError(
            f"--callback {spec}: a {type(found).__name__} that has none of {', '.join(POINTS)}, "
            "and is no function; give it one of them"
        )
    return {_FUNCTION: found}
