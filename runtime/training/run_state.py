"""What of a run goes into a checkpoint besides tensors, and comes back from one."""

from collections.abc import Callable
from pathlib import Path

from ..checkpoint import CheckpointError, Manifest, State, check_params, load
from ..engine.executor import Executor
from ..identity import Identity, check_code, check_model, check_tokenizer
from ..optimizers.optimizer import Optimizer
from .feed import Feed
from .loss_guard import LossGuard
from .options import RunOptions

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
        self.seed, self.accept_graph, self.say = options.seed, options.accept_graph, say
        self.identity = Identity(program.model, feed.reader.tokenizer)

    def after(self, step: int) -> State:
        """Return the state after `step` steps."""
        optimizer, reader = self.executor.optimizer, self.feed.reader
        return State(
            step=step,
            updates=optimizer.updates,
            skipped=self.feed.skipped,
            samples=self.feed.samples(step),
            seq=self.executor.layout.seq,
            seed=self.seed,
            data=reader.name,
            data_identity=reader.identity,
            data_position=self.feed.position(step),
            model=self.executor.layout.model,
            optimizer=optimizer.options.name,
            numbers=dict(optimizer.rule.numbers),
            losses=list(self.guard.losses),
        )

    def restore(self, manifest: Manifest) -> int:
        """Load a checkpoint of the same run; return the step that comes next."""
        state = manifest.state
        self._check_model(manifest)
        self._check(state, manifest.path)
        self._check_data(manifest)
        self.feed.restore(state.step, state.skipped, state.data_position)
        fresh = load(self.executor, manifest)
        if fresh:
            self.say(
                f"{len(fresh)} parameters were frozen in {manifest.path} ({fresh[0]} first): "
                "their optimizer state starts from zero"
            )
        self.guard.go_on(state.losses)
        return state.step

    def _check_model(self, manifest: Manifest) -> None:
        """Raise an error where the checkpoint is of another model: its config, then its parameters,
        then its code."""
        where, theirs = str(manifest.path), manifest.identity
        check_model(where, theirs, self.identity, "resume with a program of that model")
        check_params(manifest, {p.name: p.shape for p in self.executor.layout.params})
        if not self.accept_graph:
            check_code(where, theirs, self.identity)

    def _check(self, state: State, path: Path) -> None:
        """Raise CheckpointError where the rows, seed or optimizer are not this run's."""
        self._check_samples(state, path)
        if state.seed != self.seed:
            raise CheckpointError(
                f"{path} was made with seed {state.seed}, this run has {self.seed}"
            )
        self._check_optimizer(state, path)

    def _check_data(self, manifest: Manifest) -> None:
        """Raise an error for other data. Its name may differ, as data moves; the tokens may not."""
        state, path, reader = manifest.state, manifest.path, self.feed.reader
        check_tokenizer(str(path), manifest.identity, self.identity, _OTHER_TOKENS)
        if state.data_identity != reader.identity:
            raise CheckpointError(
                f"{path} was made with data {state.data} ({state.data_identity[:12]}), this run "
                f"has {reader.name} ({reader.identity[:12]}): give the same data, or start a run "
                "of its own without --resume"
            )

    def _check_samples(self, state: State, path: Path) -> None:
        batch, seq = self.feed.global_batch, self.executor.layout.seq
        samples = (state.step + state.skipped) * batch
        if (state.samples, state.seq) != (samples, seq):
            raise CheckpointError(
                f"{path} has seen {state.samples} rows of {state.seq} tokens in {state.step} "
                f"steps; this plan's global batch of {batch} rows would make it "
                f"{samples} of {seq}: plan with the same --global-batch and --seq"
            )

    def _check_optimizer(self, state: State, path: Path) -> None:
        name = self.executor.optimizer.options.name
        if state.optimizer != name:
            raise CheckpointError(
                f"{path} holds the state of {state.optimizer}, this run has {name}: resume with "
                f"--optimizer {state.optimizer}, or export the checkpoint and start with --weights "
                "(one of a preset or a TOML file goes through meshwright import in between)"
            )
