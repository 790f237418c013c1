"""What of a run goes into a checkpoint besides tensors, and comes back from one."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..checkpoint import CheckpointError, Manifest, State, check_params, lacking, load
from ..engine.executor import Executor
from ..identity import Identity, check_code, check_model, check_tokenizer
from ..optimizers.optimizer import Optimizer
from .changes import Course, changes, jumps, table
from .feed import Feed
from .loss_guard import LossGuard
from .options import OptionError, RunOptions, flag, run_options

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_OTHER_TOKENS = (
    "give data of that tokenizer; to go on with other tokens, export the checkpoint and start with "
    "--weights and --accept-tokenizer"
)


class RunState:
    """The parts of a run that a checkpoint holds. program: the identity that the program states."""

    def __init__(
        self,
        executor: Executor[Optimizer],
        feed: Feed,
        guard: LossGuard,
        options: RunOptions,
        program: Identity,
        say: Callable[[str], None],
    ) -> None:
        self.executor, self.feed, self.guard = executor, feed, guard
        self.options = replace(options, optimizer=executor.optimizer.options.name)
        self.say = say
        self.identity = replace(program, tokenizer=feed.reader.tokenizer)

    def after(self, step: int) -> State:
        """Return the state after `step` steps."""
        optimizer, reader = self.executor.optimizer, self.feed.reader
        return State(
            step=step,
            updates=optimizer.updates,
            skipped=self.feed.skipped,
            samples=self.feed.samples(step),
            seq=self.executor.layout.seq,
            seed=self.options.seed,
            data=reader.name,
            data_identity=reader.identity,
            data_position=self.feed.position(step),
            model=self.executor.layout.model,
            optimizer=optimizer.options.name,
            numbers=dict(optimizer.rule.numbers),
            losses=list(self.guard.losses),
            rest=self.feed.rest,
            tokens=self.feed.tokens_seen(step),
        )

    def check(self, manifest: Manifest, live: Mapping[str, Any] = _NOTHING) -> None:
        """Raise an error for a checkpoint that this run cannot go on from, or only with a jump that
        the options do not allow; say what a resume changes. live: options that a user set while the
        run went on, whose jump they saw."""
        self._check_model(manifest)
        self._check_optimizer(manifest.state, manifest.path)
        check_tokenizer(str(manifest.path), manifest.identity, self.identity, _OTHER_TOKENS)
        self._check_steps(manifest)
        then, now = self._courses(manifest)
        after = self._as_set(then, live)
        jump = "; ".join(jumps(manifest.state.step, after, now))
        if jump and not self.options.allow_change:
            raise CheckpointError(
                f"{manifest.path}: {jump}; give these as they were, or --allow-change to go on so"
            )
        if found := changes(then, now):
            self.say(table(found))

    def _as_set(self, then: Course, live: Mapping[str, Any]) -> Course:
        """Return a course with what a user set since and this run has too; say that."""
        if then.options is None:
            return then
        values = asdict(then.options)
        ours = asdict(self.options)
        since = {n: v for n, v in live.items() if ours[n] == v and values[n] != v}
        if since:
            words = ", ".join(f"{flag(name)} {value}" for name, value in since.items())
            self.say(f"going on with what meshwright control set after this checkpoint: {words}")
        return then._replace(options=replace(then.options, **since))

    def restore(self, manifest: Manifest) -> int:
        """Load a checkpoint of the same run; return the step that comes next."""
        self.feed.restore(manifest.state)
        fresh = load(self.executor, manifest)
        if fresh:
            self.say(
                f"{len(fresh)} parameters were frozen in {manifest.path} ({fresh[0]} first): "
                "their optimizer state starts from zero"
            )
        self.guard.go_on(manifest.state.losses)
        return manifest.state.step

    def _check_model(self, manifest: Manifest) -> None:
        """Raise an error where the checkpoint is of another model: its config, then its parameters,
        then its code."""
        where, theirs = str(manifest.path), manifest.identity
        check_model(where, theirs, self.identity, "resume with a program of that model")
        layout = self.executor.layout
        left = lacking(layout, manifest.params)
        check_params(manifest, {p.name: p.shape for p in layout.params if p.name not in left})
        if not self.options.accept_graph:
            check_code(where, theirs, self.identity)

    def _check_steps(self, manifest: Manifest) -> None:
        done, steps = manifest.state.step, self.options.steps
        if steps < done:
            raise CheckpointError(
                f"{manifest.path} has {done} steps behind it, --steps {steps} counts those of the "
                f"whole run: give more than {done}, or an older checkpoint"
            )

    def _courses(self, manifest: Manifest) -> tuple[Course, Course]:
        """The course of the checkpoint's run, and of this one at the same place."""
        state, seq = manifest.state, self.executor.layout.seq
        batches = state.step + state.skipped
        data, loss = (state.data, state.data_identity), manifest.identity.loss
        given = _options_of(manifest)
        rows = state.samples - state.rest
        mixed = state.rest > 0 or state.skipped < 0
        then = Course(given, rows, batches, state.seq, state.seed, *data, loss, mixed)
        samples, seed = batches * self.feed.global_batch, self.options.seed
        data, loss = (self.feed.reader.name, self.feed.reader.identity), self.identity.loss
        now = Course(self.options, samples, batches, seq, seed, *data, loss)
        return then, now

    def _check_optimizer(self, state: State, path: Path) -> None:
        name = self.executor.optimizer.options.name
        if state.optimizer != name:
            raise CheckpointError(
                f"{path} holds the state of {state.optimizer}, this run has {name}: resume with "
                f"--optimizer {state.optimizer}, or export the checkpoint and start with --weights "
                "(one of a preset or a TOML file goes through meshwright import in between)"
            )


def _options_of(manifest: Manifest) -> RunOptions | None:
    """Return the options of a checkpoint's run, None where it holds none."""
    if manifest.options is None:
        return None
    try:
        return run_options(manifest.options)
    except (OptionError, TypeError) as error:
        raise CheckpointError(
            f"{manifest.path}/manifest.json: malformed: options: {error}"
        ) from None
