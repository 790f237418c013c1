"""Commands of a user to a live run: taken by rank 0, carried out by all after the same step."""

import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Protocol

from ..checkpoint.manifest import rank, text_of_rank_0, texts_of_all
from ..control.address import Address, remove_address, write_address
from ..control.commands import SETTABLE, Command, CommandError, format_commands, parse_commands
from ..control.endpoint import Endpoint
from ..control.metrics import metrics_text
from ..control.windows import RankTimes, Timed, Traced, rank_times, straggler_lines
from ..engine import mesh
from ..engine.executor import Marks
from ..host import host_name
from .options import ABORTED, RunOptions

_REPLY_S = 0.3  # for the reply to an abort to leave


class Marked(Protocol):
    """Object that marks its actions."""

    beacon: Marks


class Ending(Protocol):
    """Object that is told how a run ended."""

    def end(self, state: str, why: str = "") -> None: ...


def with_values(options: RunOptions, values: Mapping[str, str]) -> RunOptions:
    """Return options with others of SETTABLE. Raises ValueError for a value that cannot be."""
    kinds: dict[str, Any] = {item.name: type(item.default) for item in fields(RunOptions)}
    read: dict[str, Any] = {}
    for name, text in values.items():
        try:
            read[name] = kinds[name](text)
        except ValueError:
            what = "a whole number" if kinds[name] is int else "a number"
            raise CommandError(f"{name}={text}: give {what}") from None
    return replace(options, **read)


class Controls:
    """Commands of one run on one rank. out: the run's folder. options: as they stand now."""

    def __init__(self, out: Path, options: RunOptions) -> None:
        self.out, self.options = out, options
        self.row: dict[str, Any] = {}
        self.known: dict[str, Any] = {}
        self._taken: list[Command] = []
        self._lock = threading.Lock()
        self._endpoint: Endpoint | None = None
        self._record: Ending | None = None

    @property
    def pending(self) -> bool:
        """Tell whether a command waits on this rank."""
        return bool(self._taken)

    def open(self, known: dict[str, Any], record: Ending) -> None:
        """Listen from now on. known: what /status tells besides the last step. record: of the run,
        told of an abort."""
        self.known, self._record = known, record
        self._endpoint = Endpoint(self.status, lambda: metrics_text(self.status()), self._take)
        job = os.environ.get("SLURM_JOB_ID", "")
        token = self._endpoint.token
        write_address(self.out, Address(host_name(), self._endpoint.port, token, job, os.getpid()))

    def close(self) -> None:
        """Listen no longer."""
        if self._endpoint is not None:
            remove_address(self.out)
            self._endpoint.close()

    def status(self) -> dict[str, Any]:
        """Return what is known of the run: of the last step, and options that may change."""
        settable = {name: getattr(self.options, name) for name in SETTABLE}
        row = dict(self.row)
        done = {"step": row.pop("step") + 1} if "step" in row else {"step": 0}
        return {**self.known, **done, "steps": self.options.steps, **row, "options": settable}

    def _take(self, command: Command) -> None:
        """Take a command, in a thread of the endpoint's."""
        if command.do == "abort":
            threading.Timer(_REPLY_S, self._abort).start()
            return
        with self._lock:
            with_values(self.options, command.values)
            self._taken.append(command)

    def _abort(self) -> None:
        if self._record is not None:
            self._record.end("aborted", "meshwright control abort")
        print("error: aborted by meshwright control", file=sys.stderr, flush=True)
        remove_address(self.out)
        os._exit(ABORTED)

    def agreed(self) -> list[Command]:
        """Return the next command of rank 0, on all ranks; the others keep for the next step."""
        with self._lock:
            first, self._taken = self._taken[:1], self._taken[1:]
        return parse_commands(text_of_rank_0(format_commands(first)))


class Window:
    """Steps in which this rank is looked at. executor: whose actions are. last: the last step."""

    def __init__(self, command: Command, step: int, executor: Marked, out: Path) -> None:
        self.executor, self.out, self.steps = executor, out, command.steps
        self.last, self._below = step + command.steps, executor.beacon
        self._folder = out / "profile" / f"step_{step + 1:08d}"
        self._looks: Traced | Timed
        if command.do == "profile":
            self._looks = Traced(self._below, self._folder, rank(), mesh.device())
        else:
            self._looks = Timed(self._below, mesh.synchronize)
        executor.beacon = self._looks

    def end(self) -> list[str]:
        """End the window on all ranks; return what to say of it."""
        self.executor.beacon = self._below
        if isinstance(self._looks, Traced):
            self._looks.end()
            return [
                f"traces of {self.steps} steps, a file a rank, for ui.perfetto.dev: {self._folder}",
                "beside the prediction: meshwright explain PROGRAM/plan.txt --timeline both.json "
                f"--measured {self._folder}",
            ]
        own = rank_times(rank(), host_name(), self._looks.end(), self.steps)
        found = [RankTimes(**json.loads(text)) for text in texts_of_all(json.dumps(asdict(own)))]
        if rank() == 0:
            rows = {"steps": self.steps, "ranks": [asdict(times) for times in found]}
            (self.out / "stragglers.json").write_text(json.dumps(rows, indent=1) + "\n")
        return straggler_lines(found)


class Windows:
    """Windows of steps one after another, in the order in which they are asked for."""

    def __init__(self, executor: Marked, out: Path) -> None:
        self.executor, self.out = executor, out
        self._open: Window | None = None
        self._asked: list[Command] = []

    def ask(self, command: Command, step: int) -> None:
        """Open a window after a step, or once those are ended that were asked for before."""
        self._asked.append(command)
        self._begin(step)

    def after(self, step: int) -> list[str]:
        """End the window of which a step is the last; return what to say of it."""
        if self._open is None or step < self._open.last:
            return []
        said, self._open = self._open.end(), None
        self._begin(step)
        return said

    def _begin(self, step: int) -> None:
        if self._open is None and self._asked:
            self._open = Window(self._asked.pop(0), step, self.executor, self.out)
