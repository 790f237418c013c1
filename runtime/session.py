"""One training run of one rank: batches in, steps, evaluation, checkpoints, the log."""

import json
import math
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import torch

from . import fidelity, mesh, run_folder
from .checkpoint import (
    Checkpointer,
    CheckpointError,
    Manifest,
    State,
    load,
    load_weights,
    newest_good,
    none_reads,
    read_manifest,
)
from .checkpoint.manifest import any_rank, rank, text_of_rank_0
from .compiling import compiler, missing_toolchain
from .data import (
    Corpus,
    DataError,
    Prefetcher,
    check_vocab,
    eval_batches,
    held_out_corpus,
    open_reader,
)
from .devices import peak_flops, peak_memory_bytes
from .executor import Batch, Executor
from .health import Beacon
from .judge import BadStepError, Judge, NotFiniteError
from .layout import Layout
from .lr import learning_rate
from .metrics import MFU_FORMULA, StepLog
from .optimizers.options import OptimizerOptions, parse_group
from .options import STOPPED, RunOptions
from .program import build_executor
from .trackers import check_tracker, open_tracker
from .watch import start_limit_s


class Stop(Protocol):
    """wanted: finish the step under way on all ranks, save, exit with STOPPED."""

    wanted: bool


class Session:
    """One training run of one rank. logs: whether this rank keeps the run's folder."""

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        options: RunOptions,
        device: torch.device,
        beacon: Beacon,
        stop: Stop,
        say: Callable[[str], None],
        logs: bool,
    ) -> None:
        self.folder, self.layout, self.options, self.device = folder, layout, options, device
        self.beacon, self.stop, self.say, self.logs = beacon, stop, say, logs
        if logs:
            check_tracker(options.track)  # before an earlier run is moved aside
        self.rows = layout.micro_batch * layout.num_microbatches
        self.global_batch = self.rows * mesh.count(*mesh.BATCH)
        self.first_row = mesh.index(*mesh.BATCH) * self.rows
        self.beacon.mark("DATA")
        self.reader = open_reader(
            options.data,
            global_batch=self.global_batch,
            seq=layout.seq,
            seed=options.seed,
            vocab=layout.vocab_size,
        )
        self._check_same_data()
        self.step_ms: list[float] = []
        self.judge = Judge(options.spike)
        self.skipped = 0  # batches that rollbacks passed over
        self.rolled_back_to = -1  # the step that the last rollback went to
        self.batches = Prefetcher(self.reader, self.first_row, self.first_row + self.rows)
        self.held_out: Corpus | None = None
        if options.eval_every or options.eval_data:
            self._held_out()  # missing data is refused now, not at the first evaluation
        learning_rate(0, **self._lr_options())  # refuse bad options before the weights are made
        self.beacon.mark("START")
        self.executor = self._executor(folder)

    def _check_same_data(self) -> None:
        """Each rank opened what lies on its own host. Raises DataError, on all ranks."""
        self.beacon.mark("AGREE")  # a rank that still opens it is what the others wait for
        own, first = self.reader.identity, text_of_rank_0(self.reader.identity)
        where = f"rank {rank()} on {socket.gethostname()}"
        problem = f"{where} reads {self.reader.name} of identity {own[:12]}, rank 0 of {first[:12]}"
        problem = any_rank(problem if own != first else "")
        if problem:
            raise DataError(f"{problem}; give all hosts the same data")

    def _executor(self, folder: Path) -> Executor:
        options = self.options
        compile_with = None if options.no_compile else compiler()
        missing = missing_toolchain(self.device)
        if compile_with is not None and missing is not None:
            self.say(f"not compiling: this machine lacks {missing}; the same text runs eagerly")
            compile_with = None
        started = time.perf_counter()
        executor = build_executor(
            folder, self.layout, self._optimizer(), seed=options.seed, compiler=compile_with
        )
        numel = sum(b.bucket.numel for b in executor.buckets.values())
        self.say(
            f"{self.layout.model}: this rank's {numel:,} parameters "
            f"made in {time.perf_counter() - started:.1f} s"
        )
        executor.beacon = self.beacon
        return executor

    def _optimizer(self) -> OptimizerOptions:
        o = self.options
        if o.optimizer and o.optimizer != self.layout.optimizer:
            self.say(f"optimizer {o.optimizer}; the plan counted on {self.layout.optimizer}")
        return OptimizerOptions(
            name=o.optimizer or self.layout.optimizer,
            beta1=o.beta1,
            beta2=o.beta2,
            eps=o.eps,
            weight_decay=o.weight_decay,
            momentum=o.momentum,
            nesterov=o.nesterov,
            muon_scale=o.muon_scale,
            rounding=o.rounding,
            clip=o.clip,
            groups=tuple(map(parse_group, o.groups)),
            seed=o.seed,
            skip_bad=o.on_nan == "skip",
        )

    def _lr_options(self) -> dict:
        o = self.options
        return {
            "schedule": o.schedule,
            "peak": o.lr,
            "warmup": min(o.warmup, o.steps),
            "total": o.steps,
            "floor": o.floor * o.lr,
        }

    def train(self) -> int:
        """All steps; returns the exit code, 0 or STOPPED."""
        out = Path(self.options.out)
        peak = peak_flops(self.device)
        first = self._resume(out)
        if peak:
            self.say(f"mfu of {peak / 1e12:.0f} Tflop/s a card: {MFU_FORMULA}")
        with self._log(out, peak and peak * mesh.world(), first) as log:
            self.beacon.first_step = first
            step = first
            while step < self.options.steps:
                try:
                    self._step(step, log)
                except BadStepError as error:
                    step = self._roll_back(step, out, log, error)
                    continue
                self._check_writes()
                if self._evaluates_after(step):
                    self._evaluate(step, log)
                self._save_after(step)
                if self.executor.optimizer.stop_agreed:
                    return self._preempted(step)
                step += 1
            self.checkpoints.wait()
            self._final(log)
        self._compare(out)
        return 0

    def _compare(self, out: Path) -> None:
        """Predicted beside measured."""
        peak = peak_memory_bytes(self.device)
        found = fidelity.compare(self.folder, self.step_ms, peak, self.device)
        for line in fidelity.lines(found):
            self.say(line)
        if self.logs:
            (out / "fidelity.json").write_text(json.dumps(found, indent=1) + "\n")

    def _log(self, out: Path, peak: float | None, first: int) -> StepLog:
        """metrics.jsonl and printed lines on rank 0, nothing elsewhere."""
        track = self.options.track if self.logs else "none"
        tracker = open_tracker(track, out, asdict(self.options), first)
        return StepLog(
            out / "metrics.jsonl" if self.logs else None,
            flops_per_token=self.layout.flops_per_token,
            peak_flops=peak,
            print_every=self.options.log_every,
            tracker=tracker,
        )

    def _resume(self, out: Path) -> int:
        """Load what `resume` asks for; returns the first step to run."""
        o, folder = self.options, out / "checkpoints"
        self.beacon.mark("LOAD")
        self.held = run_folder.hold(out) if self.logs else None
        self.checkpoints = Checkpointer(
            folder,
            self.executor,
            o.keep,
            o.keep_every,
            prepare=bool(o.save_every),
            write_limit_s=start_limit_s(o.hang_after),
        )
        if o.weights:
            count = load_weights(self.executor, Path(o.weights))
            self.say(f"{count} parameters of this rank from {o.weights}")
        manifest = self._wanted_checkpoint(folder)
        first = 0 if manifest is None else self._take_up(manifest)
        if self.logs:
            own = manifest is not None and manifest.path.parent.resolve() == folder.resolve()
            aside = run_folder.go_on(out, first) if own else run_folder.begin(out)
            if aside is not None:
                self.say(f"what an earlier run left in {out} past step {first} is now in {aside}")
        return first

    def _roll_back(self, step: int, out: Path, log: StepLog, error: BadStepError) -> int:
        """Go on from the newest good checkpoint, past the batches up to that of the bad step.

        Where the first step after a rollback is not finite either, the fault is the checkpoint's:
        then from the one before it.
        """
        if self.options.on_nan != "rollback":
            raise error
        self._check_writes()
        self.judge.roll_back(error)
        self.checkpoints.wait()
        again = step == self.rolled_back_to and isinstance(error, NotFiniteError)
        manifest = self._newest(out / "checkpoints", step if again else math.inf)
        if manifest is None:
            raise BadStepError(_nowhere_to_go(error, out / "checkpoints", step, again)) from None
        bad = step + self.skipped
        back = self._take_up(manifest)
        self.skipped = bad + 1 - back
        self.rolled_back_to = back
        if again and self.logs:
            aside = run_folder.pass_over(out, back)
            self.say(f"passed over the checkpoint after {step} steps, which is now in {aside}")
        self.say(
            f"step {step}: {str(error).partition(';')[0]}; rolled back to step {back}, passing "
            f"over {self.skipped} batches"
        )
        log.trim(back)
        return back

    def _wanted_checkpoint(self, folder: Path) -> Manifest | None:
        wanted = self.options.resume
        if wanted != "auto":
            return self._named_checkpoint(Path(wanted)) if wanted else None
        manifest = self._newest(folder)
        if manifest is None:
            self.say(f"no checkpoint in {folder}: starting from step 0")
        return manifest

    def _named_checkpoint(self, path: Path) -> Manifest:
        try:
            return read_manifest(path)
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}; give --resume the path of an older checkpoint, or auto for the newest "
                "good one of --out"
            ) from None

    def _newest(self, folder: Path, before: float = math.inf) -> Manifest | None:
        """The newest good checkpoint of fewer than `before` steps, None where there is none at all.
        Raises CheckpointError where all are damaged: to start over in their place is for the user
        to decide."""
        manifest, complaints = newest_good(folder, before)
        if manifest is None and complaints:
            raise CheckpointError(none_reads(folder, complaints))
        for complaint in complaints:
            self.say(f"passed over a checkpoint: {complaint}")
        return manifest

    def _take_up(self, manifest: Manifest) -> int:
        self._check_state(manifest.state, manifest.path)
        self.skipped = manifest.state.skipped
        self.batches.restore(manifest.state.step + self.skipped, manifest.state.data_position)
        load(self.executor, manifest)
        self.judge.go_on(manifest.state.losses)
        self.say(f"resumed {manifest.path} after {manifest.state.step} steps")
        return manifest.state.step

    def _check_state(self, state: State, path: Path) -> None:
        """The same run goes on: its rows, seed and data."""
        samples, seq = (state.step + state.skipped) * self.global_batch, self.layout.seq
        if (state.samples, state.seq) != (samples, seq):
            raise CheckpointError(
                f"{path} has seen {state.samples} rows of {state.seq} tokens in {state.step} "
                f"steps; this plan's global batch of {self.global_batch} rows would make it "
                f"{samples} of {seq}: plan with the same --global-batch and --seq"
            )
        if state.seed != self.options.seed:
            raise CheckpointError(
                f"{path} was made with seed {state.seed}, this run has {self.options.seed}"
            )
        name = self.executor.optimizer.options.name
        if state.optimizer != name:
            raise CheckpointError(
                f"{path} holds the state of {state.optimizer}, this run has {name}: resume with "
                f"--optimizer {state.optimizer}, or export the checkpoint and start with --weights "
                "(one of a preset or a TOML file goes through meshwright import in between)"
            )
        # The name may differ, as data moves; the tokens may not.
        if state.data_identity != self.reader.identity:
            raise CheckpointError(
                f"{path} was made with data {state.data} ({state.data_identity[:12]}), this run "
                f"has {self.reader.name} ({self.reader.identity[:12]}): give the same data, or "
                "start a run of its own without --resume"
            )

    def _check_writes(self) -> None:
        """A checkpoint that one rank could not write ends the run on all, in the step after."""
        if self.executor.optimizer.write_failed_anywhere:
            self.checkpoints.fail_together()

    def _save_after(self, step: int) -> None:
        every, done = self.options.save_every, step + 1
        due = bool(every) and (done % every == 0 or done == self.options.steps)
        if due or self.executor.optimizer.stop_agreed:
            self.beacon.mark("SAVE")
            stall_s = self.checkpoints.save(self._state(done))
            self.say(f"checkpoint after {done} steps: the step waited {stall_s * 1e3:.1f} ms")

    def _state(self, step: int) -> State:
        return State(
            step=step,
            updates=self.executor.optimizer.updates,
            skipped=self.skipped,
            samples=(step + self.skipped) * self.global_batch,
            seq=self.layout.seq,
            seed=self.options.seed,
            data=self.reader.name,
            data_identity=self.reader.identity,
            data_position=self.reader.state(step + self.skipped),
            model=self.layout.model,
            optimizer=self.executor.optimizer.options.name,
            numbers=dict(self.executor.optimizer.rule.numbers),
            losses=list(self.judge.losses),
        )

    def _preempted(self, step: int) -> int:
        self.checkpoints.wait()
        self.say(f"stopped by a signal after step {step}, saved; go on with --resume auto")
        return STOPPED

    def _step(self, step: int, log: StepLog) -> None:
        started = time.perf_counter()
        self.beacon.step = step
        self.beacon.mark("DATA")
        self.executor.optimizer.stop_wanted = self.stop.wanted
        self.executor.optimizer.write_failed = self.checkpoints.failed
        self.executor.optimizer.loss_limit = self.judge.limit
        batch = self.batches.take(step + self.skipped)
        batches = self._micro_batches(batch.tokens, batch.labels)
        lr = learning_rate(step, **self._lr_options())
        loss, norm = self.executor.train_step(batches, batch.label_count, lr)
        self.judge.saw(loss)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.step_ms.append((time.perf_counter() - started) * 1e3)
        log.step(
            step,
            loss=loss,
            lr=lr,
            grad_norm=norm,
            tokens=self.global_batch * self.layout.seq,
            step_ms=self.step_ms[-1],
            peak_memory_bytes=peak_memory_bytes(self.device),
        )

    def _micro_batches(self, tokens: torch.Tensor, labels: torch.Tensor) -> list[Batch]:
        size = self.layout.micro_batch
        pairs = zip(tokens.split(size), labels.split(size), strict=True)
        return [(t.to(self.device), x.to(self.device)) for t, x in pairs]

    def _evaluates_after(self, step: int) -> bool:
        every = self.options.eval_every
        return bool(every) and (step + 1) % every == 0 and step + 1 < self.options.steps

    def _evaluate(self, step: int, log: StepLog) -> float:
        loss, tokens = self.held_out_loss()
        log.evaluation(step, eval_loss=loss, tokens=tokens)
        return loss

    def held_out_loss(self) -> tuple[float, int]:
        """Mean loss over held-out tokens, and how many."""
        corpus = self._held_out()
        total, count = 0.0, 0
        with torch.no_grad(), self.executor.optimizer.averaged():
            for batch in self._eval_batches(corpus):
                pairs = self._micro_batches(batch.tokens, batch.labels)
                total += self.executor.evaluate(pairs, batch.label_count) * batch.label_count
                count += batch.label_count
        return total / count, count

    def _held_out(self) -> Corpus:
        if self.held_out is None:
            corpus = held_out_corpus(self.options.data, self.options.eval_data)
            check_vocab(corpus.name, corpus.vocab, self.layout.vocab_size)
            self.held_out = corpus
        return self.held_out

    def _eval_batches(self, corpus: Corpus):  # type: ignore[no-untyped-def]
        return eval_batches(
            corpus,
            global_batch=self.global_batch,
            seq=self.layout.seq,
            start=self.first_row,
            stop=self.first_row + self.rows,
            limit=self.options.eval_batches or None,
            vocab=self.layout.vocab_size,
        )

    def _final(self, log: StepLog) -> None:
        try:
            loss, tokens = self.held_out_loss()
        except DataError as error:
            self.say(f"no held-out loss: {error}")
            return
        log.evaluation(self.options.steps - 1, eval_loss=loss, tokens=tokens)
        unit = "nats/byte" if self.reader.vocab == 256 else "nats/token"
        self.say(f"held-out loss: {loss:.3f} {unit} ({tokens:,} tokens)")


def _nowhere_to_go(error: BadStepError, folder: Path, step: int, again: bool) -> str:
    """What to say where no checkpoint is left to roll back to."""
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
