"""When a run writes checkpoints, and what happens when a write fails."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from ..checkpoint import Checkpointer, CheckpointError
from ..checkpoint.fast import KEEP, FastCheckpointer, FastTier
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
        fast: FastTier | None = None,
    ) -> None:
        self.options, self.state, self.say = options, state, say
        self._every_s = 60.0 * options.save_minutes or math.inf
        self._saved_s = time.monotonic()
        self._saved_step = -1
        self._begun: list[Path] = []
        self._checkpointer = Checkpointer(
            Path(options.out) / "checkpoints",
            state.executor,
            options.keep,
            options.keep_every,
            prepare=options.save_every > 0,
            write_limit_s=write_limit_s,
            identity=state.identity,
            options=asdict(state.options),
        )
        self._tier = fast
        self._fast = self._fast_writer(fast, write_limit_s) if fast is not None else None
        self._warned = False

    def _fast_writer(self, tier: FastTier, write_limit_s: float) -> FastCheckpointer:
        writer = FastCheckpointer(
            tier.folder,
            self.state.executor,
            KEEP,
            prepare=True,
            write_limit_s=write_limit_s,
            identity=self.state.identity,
            options=asdict(self.state.options),
            ranks=tier.ranks,
        )
        writer.start, writer.out = tier.start, tier.out
        return writer

    def change(self, options: RunOptions) -> None:
        """Go on with other options, which later checkpoints hold."""
        self.options = options
        self.state.options = replace(options, optimizer=self.state.options.optimizer)
        self._every_s = 60.0 * options.save_minutes or math.inf
        for writer in filter(None, (self._checkpointer, self._fast)):
            writer.options = asdict(self.state.options)
        self._checkpointer.keep = options.keep

    @property
    def failed(self) -> bool:
        """Tell whether this rank's last write failed."""
        return self._checkpointer.failed

    @property
    def is_time(self) -> bool:
        """Tell whether the last save of a run that saves by time is long enough ago."""
        since_s = time.monotonic() - self._saved_s
        return not self.options.save_every and since_s > self._every_s

    def check(self) -> None:
        """End the run on all ranks, in the step after one of them could not write."""
        if self.state.executor.agreement.write_failed.anywhere:
            self._checkpointer.fail_together()

    def after(self, step: int) -> None:
        """Save after a step where one is due, or a signal or a callback asks all ranks for it."""
        done, executor = step + 1, self.state.executor
        asked = executor.agreement
        if self._is_due(done) or asked.stop.anywhere or asked.save.anywhere or asked.end.anywhere:
            executor.beacon.mark("SAVE")
            stall_s = self._checkpointer.save(self.state.after(done))
            self._saved_s, self._saved_step = time.monotonic(), done
            self._begun.append(folder_of(Path(self.options.out) / "checkpoints", done))
            self.say(f"checkpoint after {done} steps: the step waited {stall_s * 1e3:.1f} ms")
        elif self._fast is not None and done % self.options.fast_every == 0:
            executor.beacon.mark("SAVE")
            self._save_fast(self._fast, done)

    def _save_fast(self, writer: FastCheckpointer, done: int) -> None:
        """Save in the fast tier, without which the run goes on where a host cannot write."""
        try:
            writer.save(self.state.after(done))
        except CheckpointError:
            self._give_up(writer)

    def _give_up(self, writer: FastCheckpointer) -> None:
        """Leave a save out that failed on a rank; say it once. To be called on all ranks."""
        why, hangs = writer.give_up()
        if hangs:
            self._fast = None
        if not self._warned or hangs:
            then = "no more is written there" if hangs else "the run goes on without"
            self.say(f"warning: a fast checkpoint could not be written: {why}; {then}")
        self._warned = True

    def turn_back(self, step: int) -> None:
        """Forget fast checkpoints of more than `step` steps, from which the run goes on."""
        if self._tier is not None:
            self._tier.forget(step)

    def _is_due(self, done: int) -> bool:
        """Tell whether options ask for a save after `done` steps, alike on all ranks."""
        every, last = self.options.save_every, done == self.options.steps
        return self.options.saves and (last or (every > 0 and done % every == 0))

    def newly_written(self) -> list[Path]:
        """Return the checkpoints that are whole on disk and were not returned before."""
        whole = [path for path in self._begun if path.is_dir()]
        self._begun = [path for path in self._begun if path not in whole]
        return whole

    def wait(self) -> None:
        """Wait until the last save of every rank is on disk. To be called on all ranks."""
        self._checkpointer.wait()
        if self._fast is not None:
            try:
                self._fast.wait()
            except CheckpointError:
                self._give_up(self._fast)

    def end(self, done: int) -> None:
        """Remove the fast tier of a run whose last step is durable. To be called on all ranks."""
        if self._tier is not None and self._saved_step == done:
            self._tier.remove()
