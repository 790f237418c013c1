"""Which checkpoint a run goes on from: at its start, and after a bad step."""

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..checkpoint import (
    CheckpointError,
    Manifest,
    load_weights,
    newest_good,
    none_reads,
    read_manifest,
    weights_identity,
)
from ..checkpoint.fast import FastTier
from ..checkpoint.manifest import seen_by_rank_0, step_of, text_of_rank_0
from ..data import folder_tokenizer
from ..identity import check_code, check_model, check_tokenizer
from ..optimizers.bad_step import BadStepError, NotFiniteError
from . import run_folder
from .options import RunOptions
from .past_run import launch_of, live_values, set_live
from .run_state import RunState

_NONE_READS = (
    "restore one of them, give --resume the path of another, or start from step 0: in another "
    "--out, or here by --fresh, which moves them aside first"
)


class Recovery:
    """The checkpoints of one run, read. logs: whether this rank keeps the run's folder."""

    def __init__(
        self,
        options: RunOptions,
        state: RunState,
        say: Callable[[str], None],
        logs: bool,
        fast: FastTier | None = None,
    ) -> None:
        self.fast = fast
        self.options, self.state, self.say, self.logs = options, state, say, logs
        self.out = Path(options.out)
        self.folder = self.out / "checkpoints"
        self._rolled_back_to = -1  # the step that the last rollback went to

    def start(self) -> int:
        """Load what the run starts or goes on from; return the first step to run.

        That is the checkpoint of `resume`, else the newest of the folder, else `weights`. What an
        earlier run left in the folder past that step is moved aside.
        """
        manifest = self._wanted()
        if manifest is None:
            first = 0
            self._load_weights()
        else:
            self.state.check(manifest, self._set_live(manifest))
            first = self._restore(manifest)
        if self.logs:
            self._make_way(manifest, first)
        return first

    def _load_weights(self) -> None:
        if self.options.weights:
            self._check_weights(Path(self.options.weights))
            loaded = load_weights(self.state.executor, Path(self.options.weights))
            self.say(loaded.text(self.options.weights))

    def _check_weights(self, folder: Path) -> None:
        """Raise IdentityError where the folder says that its weights are of another model, or were
        trained on other tokens."""
        where, ours, options = str(folder), self.state.identity, self.options
        theirs = weights_identity(folder, ours)
        check_model(where, theirs, ours, "give weights of this model, or plan that one")
        if not options.accept_graph:
            check_code(where, theirs, ours)
        if not options.accept_tokenizer:
            theirs = replace(theirs, tokenizer=theirs.tokenizer or folder_tokenizer(folder))
            check_tokenizer(
                where, theirs, ours, "give data of that tokenizer, or go on by --accept-tokenizer"
            )

    def _set_live(self, manifest: Manifest) -> dict[str, Any]:
        """Return the options that a user set while the run was live, the same on all ranks: of the
        run that the checkpoint is of, or of the launch that starts again."""
        own = self._is_own(manifest)
        found = set_live(self.out)["values"] if own else live_values(self.out, _this_launch())
        return dict(json.loads(text_of_rank_0(json.dumps(found))))

    def _is_own(self, manifest: Manifest) -> bool:
        tiers = [self.folder, *([self.fast.folder] if self.fast else [])]
        return any(manifest.path.parent.resolve() == tier.resolve() for tier in tiers)

    def _make_way(self, manifest: Manifest | None, first: int) -> None:
        why = "" if self.options.fresh or manifest else run_folder.unsaved(self.out)
        aside = self._set_aside(manifest, first)
        if aside is not None:
            left = f"an earlier run left in {self.out} past step {first} is now in {aside}"
            self.say(f"{why}what {left}")

    def _set_aside(self, manifest: Manifest | None, first: int) -> Path | None:
        own = manifest is not None and self._is_own(manifest)
        return run_folder.go_on(self.out, first) if own else run_folder.begin(self.out)

    def roll_back(self, step: int, error: BadStepError) -> int:
        """Restore the newest good checkpoint; skip the batches up to that of the bad step.

        Returns the step that comes next. Where the first step after a rollback is not finite
        either, the fault is the checkpoint's: then it is the one before it. Raises BadStepError
        where there is none.
        """
        again = step == self._rolled_back_to and isinstance(error, NotFiniteError)
        manifest = self._newest(step if again else math.inf)
        if manifest is None:
            raise BadStepError(_nowhere_to_go(error, self.folder, step, again)) from None
        feed = self.state.feed
        bad = feed.samples(step + 1)  # rows up to the end of the bad batch
        back = self._restore(manifest)
        passed = math.ceil((bad - feed.samples(back)) / feed.global_batch)
        feed.skipped += passed
        self._rolled_back_to = back
        if again and self.logs:
            aside = run_folder.pass_over(self.out, back)
            self.say(f"passed over the checkpoint after {step} steps, which is now in {aside}")
        self.say(
            f"step {step}: {str(error).partition(';')[0]}; rolled back to step {back}, passing "
            f"over {passed} batches"
        )
        return back

    def _wanted(self) -> Manifest | None:
        wanted = self.options.resume
        if self.options.fresh:
            return None
        if wanted not in ("", "auto"):
            return _named(Path(wanted))
        manifest = self._newest_of_both()
        if manifest is None and wanted:
            self.say(f"no checkpoint in {self.folder}: starting from step 0")
        if manifest is not None and not wanted:
            self.say(f"{self.out} holds a run, which goes on; --fresh would start anew")
        return manifest

    def _newest_of_both(self) -> Manifest | None:
        """Return the newest checkpoint of either tier; of the durable one no file is read where the
        fast one is ahead."""
        durable = max(map(step_of, seen_by_rank_0(self.folder)), default=0)
        ahead = self._newest_fast(durable)
        if ahead is not None:
            return ahead
        try:
            manifest = self._newest()
        except CheckpointError:
            manifest = self._newest_fast(0)
            if manifest is None:
                raise
            return manifest
        done = manifest.state.step if manifest is not None else 0
        return manifest if done == durable else self._newest_fast(done) or manifest

    def _newest_fast(self, above: int) -> Manifest | None:
        if self.fast is None:
            return None
        manifest, complaints = self.fast.newest(self.state.executor, above)
        for complaint in complaints:
            self.say(f"passed over a fast checkpoint: {complaint}")
        return manifest

    def _newest(self, before: float = math.inf) -> Manifest | None:
        """Return the newest good checkpoint of fewer than `before` steps, None without any.

        Raises CheckpointError where all are damaged: to start over in their place is for the user
        to decide.
        """
        manifest, complaints = newest_good(self.folder, before)
        if manifest is None and complaints:
            raise CheckpointError(none_reads(self.folder, complaints, _NONE_READS))
        for complaint in complaints:
            self.say(f"passed over a checkpoint: {complaint}")
        return manifest

    def _restore(self, manifest: Manifest) -> int:
        step = self.state.restore(manifest)
        done = f": all of --steps {step} are done" if step == self.options.steps else ""
        self.say(f"resumed {manifest.path} after {step} steps{done}")
        return step


def _this_launch() -> str:
    return launch_of(os.getppid())


def _named(path: Path) -> Manifest:
    try:
        return read_manifest(path)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}; give --resume the path of an older checkpoint, or auto for the newest "
            "good one of --out"
        ) from None


def _nowhere_to_go(error: BadStepError, folder: Path, step: int, again: bool) -> str:
    """Return what to say where no checkpoint is left to roll back to."""
    if not again:
        return (
            f"{error}; there is no checkpoint in {folder} to roll back to yet: give a smaller "
            "--save-every"
        )
    return (
        f"{str(error).partition(';')[0]}, in the first step after it was rolled back to step "
        f"{step}; its checkpoint is bad, and {folder} has none before it: give --resume the path "
        "of another, or start again, at a lower rate"
    )
