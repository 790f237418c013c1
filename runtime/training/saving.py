"""When a run writes checkpoints, and what happens when a write fails."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from ..checkpoint import Checkpointer
from ..checkpoint.manifest import folder_of
from .options import RunOptions
from .run_state import RunState


class Saver:
    """The checkpoints of one run, written. write_limit_s: after which a write counts as failed."""

    def __init__(
        self,
        options: RunOptions,
        state: RunState,
        say: Callable[[str], None],
        write_limit_s: float,
    ) -> None:
        self.options, self.state, self.say = options, state, say
        self._begun: list[Path] = []
        self._checkpointer = Checkpointer(
            Path(options.out) / "checkpoints",
            state.executor,
            options.keep,
            options.keep_every,
            prepare=bool(options.save_every),
            write_limit_s=write_limit_s,
            identity=state.identity,
            options=asdict(state.options),
        )

    @property
    def failed(self) -> bool:
        """Tell whether this rank's last write failed."""
        return self._checkpointer.failed

    def check(self) -> None:
        """End the run on all ranks, in the step after one of them could not write."""
        if self.state.executor.agreement.write_failed.anywhere:
            self._checkpointer.fail_together()

    def after(self, step: int) -> None:
        """Save after a step where one is due, or a signal or a callback asks all ranks for it."""
        every, done, executor = self.options.save_every, step + 1, self.state.executor
        due = bool(every) and (done % every == 0 or done == self.options.steps)
        asked = executor.agreement
        if due or asked.stop.anywhere or asked.save.anywhere or asked.end.anywhere:
            executor.beacon.mark("SAVE")
            stall_s = self._checkpointer.save(self.state.after(done))
            self._begun.append(folder_of(Path(self.options.out) / "checkpoints", done))
            self.say(f"checkpoint after {done} steps: the step waited {stall_s * 1e3:.1f} ms")

    def newly_written(self) -> list[Path]:
        """Return the checkpoints that are whole on disk and were not returned before."""
        whole = [path for path in self._begun if path.is_dir()]
        self._begun = [path for path in self._begun if path not in whole]
        return whole

    def wait(self) -> None:
        """Wait until the last save of every rank is on disk. To be called on all ranks."""
        self._checkpointer.wait()
