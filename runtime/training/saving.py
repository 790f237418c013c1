"""When a run writes checkpoints, and what happens when a write fails."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from ..checkpoint import Checkpointer
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
        """Save after a step where one is due, or a signal asks all ranks to stop."""
        every, done, executor = self.options.save_every, step + 1, self.state.executor
        due = bool(every) and (done % every == 0 or done == self.options.steps)
        if due or executor.agreement.stop.anywhere:
            executor.beacon.mark("SAVE")
            stall_s = self._checkpointer.save(self.state.after(done))
            self.say(f"checkpoint after {done} steps: the step waited {stall_s * 1e3:.1f} ms")

    def wait(self) -> None:
        """Wait until the last save of every rank is on disk. To be called on all ranks."""
        self._checkpointer.wait()
