"""The entry of an emitted program: arguments, process group, the training loop."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from . import mesh
from .checkpoint import Checkpointer, CheckpointError, State, load_weights, newest_good
from .compiling import compiler, missing_toolchain
from .data import BatchReader, Corpus, DataError, eval_batches, open_corpus
from .executor import Batch, Executor
from .layout import Layout
from .lr import SCHEDULES, learning_rate
from .metrics import MFU_FORMULA, StepLog
from .optimizer import AdamWOptions
from .program import build_executor, load_layout

STOPPED = 75  # exit code of a run that a signal ended after saving (EX_TEMPFAIL)


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class RunOptions:
    """What a run is given besides its program; every field is a command-line option and a key of
    a job file's [run] table."""

    data: str = _option(
        "demo", "demo, file:PATH (bytes), random:VOCAB[:SEED] or fixed:VOCAB[:SEED]"
    )
    steps: int = _option(100, "optimizer steps of the whole run")
    seed: int = _option(0, "of initial weights and the order of samples")
    lr: float = _option(1e-3, "peak learning rate")
    schedule: str = _option("cosine", "of the learning rate after warm-up")
    warmup: int = _option(10, "steps of linear warm-up")
    floor: float = _option(0.1, "last learning rate as a share of the peak")
    beta1: float = _option(0.9, "AdamW's decay of the first moment")
    beta2: float = _option(0.95, "AdamW's decay of the second moment")
    eps: float = _option(1e-8, "AdamW's epsilon")
    weight_decay: float = _option(0.1, "of matrices; vectors are not decayed")
    clip: float = _option(1.0, "global gradient norm to clip to, 0 for none")
    eval_every: int = _option(0, "steps between evaluations, 0 for one at the end")
    eval_batches: int = _option(0, "held-out batches of an evaluation, 0 for all")
    log_every: int = _option(1, "steps between printed lines; metrics.jsonl has every step")
    out: str = _option("run", "the run's folder")
    save_every: int = _option(0, "steps between checkpoints in OUT/checkpoints, 0 for none")
    keep: int = _option(0, "newest checkpoints kept, 0 for all")
    resume: str = _option("", 'a checkpoint\'s folder, or "auto" for the newest good one of OUT')
    on_nan: str = _option("stop", "a step whose loss is not finite: stop, or skip its update")
    weights: str = _option("", "a Hugging Face folder of safetensors to start from (hf: models)")
    no_compile: bool = _option(False, "run the emitted text eagerly, without torch.compile")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One option per field of RunOptions."""
    for item in fields(RunOptions):
        name, text = f"--{item.name.replace('_', '-')}", item.metadata["help"]
        if isinstance(item.default, bool):
            parser.add_argument(name, action="store_true", help=text)
            continue
        shown = f"{text} (default: {item.default})" if item.default != "" else text
        choices = SCHEDULES if item.name == "schedule" else None
        kind = type(item.default)
        metavar = None if choices else kind.__name__.upper()
        parser.add_argument(
            name, type=kind, default=item.default, choices=choices, help=shown, metavar=metavar
        )


def main(folder: Path) -> None:
    """Train the program in `folder` with the command line's options; exit code 2 on bad input."""
    parser = argparse.ArgumentParser(description=f"Run the program in {folder.name}")
    add_arguments(parser)
    options = RunOptions(**vars(parser.parse_args()))
    try:
        # Before the rendezvous, which would wait for ranks that nobody launches.
        mesh.check_world(load_layout(folder).mesh, int(os.environ.get("WORLD_SIZE", "1")))
        device = start_distributed()
        code = run(folder, options, device)
    except ValueError as error:
        if int(os.environ.get("RANK", "0")) == 0:
            print(f"error: {error}", file=sys.stderr, flush=True)
        sys.stderr.flush()
        os._exit(2)
    finish(code)


def finish(code: int) -> None:
    """Leave together and at once: tearing gloo's groups down one by one races with its threads."""
    if dist.is_initialized():
        dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def start_distributed() -> torch.device:
    """Process group from torchrun's environment (none for one process), and this rank's device."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    cuda = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if cuda and local >= torch.cuda.device_count():
        raise ValueError(
            f"local rank {local} has no GPU: this machine has {torch.cuda.device_count()}; "
            "start fewer ranks on it"
        )
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if world > 1:
        dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    return device


def run(folder: Path, options: RunOptions, device: torch.device) -> int:
    """Build the executor and train; rank 0 writes the log and prints. Returns the exit code."""
    layout = load_layout(folder)
    mesh.start(layout.mesh, device)
    loud = not dist.is_initialized() or dist.get_rank() == 0
    say: Callable[[str], None] = _say if loud else _silent
    session = Session(folder, layout, options, device, say)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, session.on_signal)
    return session.train()


def _skips(policy: str) -> bool:
    if policy not in ("stop", "skip"):
        raise ValueError(f"--on-nan {policy}: give stop or skip")
    return policy == "skip"


def _say(text: str) -> None:
    print(text, flush=True)


def _silent(text: str) -> None:
    return None


class Session:
    """One training run of one rank."""

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        options: RunOptions,
        device: torch.device,
        say: Callable[[str], None],
    ) -> None:
        self.layout, self.options, self.device, self.say = layout, options, device, say
        self.rows = layout.micro_batch * layout.num_microbatches
        self.global_batch = self.rows * mesh.size("dp")
        self.first_row = mesh.coordinate("dp") * self.rows
        self.corpus = open_corpus(options.data, "train")
        self.reader = BatchReader(
            self.corpus,
            global_batch=self.global_batch,
            seq=layout.seq,
            seed=options.seed,
            vocab=layout.vocab_size,
        )
        learning_rate(0, **self._lr_options())  # refuse bad options before the weights are made
        self.executor = self._executor(folder)

    def on_signal(self, *_: object) -> None:
        """Finish the step under way on all ranks, save, exit with STOPPED."""
        self.executor.optimizer.stop_wanted = True

    def _executor(self, folder: Path) -> Executor:
        options = self.options
        adamw = AdamWOptions(
            options.beta1,
            options.beta2,
            options.eps,
            options.weight_decay,
            options.clip,
            skip_nonfinite=_skips(options.on_nan),
        )
        compile_with = None if options.no_compile else compiler()
        missing = missing_toolchain(self.device)
        if compile_with is not None and missing is not None:
            self.say(f"not compiling: this machine lacks {missing}; the same text runs eagerly")
            compile_with = None
        started = time.perf_counter()
        executor = build_executor(
            folder, self.layout, adamw, seed=options.seed, compiler=compile_with
        )
        numel = sum(b.bucket.numel for b in executor.buckets.values())
        self.say(
            f"{self.layout.model}: this stage's {numel:,} parameters "
            f"made in {time.perf_counter() - started:.1f} s"
        )
        return executor

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
        world = dist.get_world_size() if dist.is_initialized() else 1
        first = self._resume(out / "checkpoints")
        if peak:
            self.say(f"mfu of {peak / 1e12:.0f} Tflop/s a card: {MFU_FORMULA}")
        with _Log(out, self.layout, self.options, peak and peak * world, self.say, first) as log:
            for step in range(first, self.options.steps):
                self._step(step, log)
                if self._evaluates_after(step):
                    self._evaluate(step, log)
                self._save_after(step)
                if self.executor.optimizer.stop_agreed:
                    return self._preempted(step)
            self.checkpoints.wait()
            if self.options.steps:
                self._final(log)
        return 0

    def _resume(self, folder: Path) -> int:
        """Load what `resume` asks for; returns the first step to run."""
        self.checkpoints = Checkpointer(folder, self.executor, self.options.keep)
        wanted = self.options.resume
        if self.options.weights:
            count = load_weights(self.executor, Path(self.options.weights))
            self.say(f"{count} parameters of this stage from {self.options.weights}")
        if not wanted:
            return 0
        path: Path | None = Path(wanted)
        if wanted == "auto":
            path, complaints = newest_good(folder)
            for complaint in complaints:
                self.say(f"passed over a checkpoint: {complaint}")
            if path is None:
                self.say(f"no checkpoint in {folder}: starting from step 0")
                return 0
        assert path is not None
        state = self.checkpoints.load(path)
        self._check_state(state, path)
        self.say(f"resumed {path} after {state.step} steps")
        return state.step

    def _check_state(self, state: State, path: Path) -> None:
        """The same run goes on: its rows, seed and data."""
        samples = state.step * self.global_batch
        if state.samples != samples:
            raise CheckpointError(
                f"{path} has seen {state.samples} rows in {state.step} steps; this plan's global "
                f"batch of {self.global_batch} would make it {samples}: plan with the same one"
            )
        for name in ("seed", "data"):
            then, now = getattr(state, name), getattr(self.options, name)
            if then != now:
                raise CheckpointError(f"{path} was made with {name} {then}, this run has {now}")

    def _save_after(self, step: int) -> None:
        every = self.options.save_every
        due = bool(every) and (step + 1) % every == 0
        if due or self.executor.optimizer.stop_agreed:
            o = self.options
            state = State(
                step + 1, (step + 1) * self.global_batch, o.seed, o.data, self.layout.model
            )
            self.checkpoints.save(state)

    def _preempted(self, step: int) -> int:
        self.checkpoints.wait()
        self.say(f"stopped by a signal after step {step}, saved; go on with --resume auto")
        return STOPPED

    def _step(self, step: int, log: "_Log") -> None:
        started = time.perf_counter()
        batch = self.reader.rows(step, self.first_row, self.first_row + self.rows)
        batches = self._micro_batches(batch.tokens, batch.labels)
        lr = learning_rate(step, **self._lr_options())
        loss, norm = self.executor.train_step(batches, batch.label_count, lr)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        log.step(
            step,
            loss=loss,
            lr=lr,
            grad_norm=norm,
            tokens=self.global_batch * self.layout.seq,
            step_ms=(time.perf_counter() - started) * 1e3,
            peak_memory_bytes=peak_memory_bytes(self.device),
        )

    def _micro_batches(self, tokens: torch.Tensor, labels: torch.Tensor) -> list[Batch]:
        size = self.layout.micro_batch
        pairs = zip(tokens.split(size), labels.split(size), strict=True)
        return [(t.to(self.device), x.to(self.device)) for t, x in pairs]

    def _evaluates_after(self, step: int) -> bool:
        every = self.options.eval_every
        return bool(every) and (step + 1) % every == 0 and step + 1 < self.options.steps

    def _evaluate(self, step: int, log: "_Log") -> float:
        loss, tokens = self.held_out_loss()
        log.evaluation(step, eval_loss=loss, tokens=tokens)
        return loss

    def held_out_loss(self) -> tuple[float, int]:
        """Mean loss over held-out tokens, and how many."""
        corpus = open_corpus(self.options.data, "held-out")
        total, count = 0.0, 0
        for batch in self._eval_batches(corpus):
            pairs = self._micro_batches(batch.tokens, batch.labels)
            total += self.executor.evaluate(pairs, batch.label_count) * batch.label_count
            count += batch.label_count
        return total / count, count

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

    def _final(self, log: "_Log") -> None:
        try:
            loss, tokens = self.held_out_loss()
        except DataError as error:
            self.say(f"no held-out loss: {error}")
            return
        log.evaluation(self.options.steps - 1, eval_loss=loss, tokens=tokens)
        unit = "nats/byte" if self.corpus.vocab == 256 else "nats/token"
        self.say(f"held-out loss: {loss:.3f} {unit} ({tokens:,} tokens)")


class _Log:
    """A StepLog on rank 0, nothing elsewhere."""

    def __init__(
        self,
        out: Path,
        layout: Layout,
        options: RunOptions,
        peak: float | None,
        say: Callable[[str], None],
        first: int,
    ) -> None:
        self.log: StepLog | None = None
        if say is not _say:
            return
        path = out / "metrics.jsonl"
        if first == 0:
            path.unlink(missing_ok=True)  # a run from the start has a log of its own
        self.log = StepLog(
            path,
            flops_per_token=layout.flops_per_token,
            peak_flops=peak,
            print_every=options.log_every,
        )

    def step(self, step: int, **values: float) -> None:
        if self.log is not None:
            self.log.step(step, **values)  # type: ignore[arg-type]

    def evaluation(self, step: int, **values: float) -> None:
        if self.log is not None:
            self.log.evaluation(step, **values)  # type: ignore[arg-type]

    def __enter__(self) -> "_Log":
        return self

    def __exit__(self, *_: object) -> None:
        if self.log is not None:
            self.log.close()


# Dense bf16 peaks by the vendor's datasheets, flops per second of one card.
_PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}


def peak_flops(device: torch.device) -> float | None:
    """The card's dense bf16 peak, None where it is not known (mfu is then null)."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for key, peak in _PEAKS.items() if key in name), None)


def peak_memory_bytes(device: torch.device) -> int:
    """Most bytes held: by the allocator on CUDA, by the process on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
