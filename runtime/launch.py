"""The entry of an emitted program: arguments, process group, the training loop."""

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import torch
import torch.distributed as dist

from . import mesh
from .compiling import compiler, missing_toolchain
from .data import BatchReader, Corpus, DataError, eval_batches, open_corpus
from .executor import Batch, Executor
from .layout import Layout
from .lr import SCHEDULES, learning_rate
from .metrics import MFU_FORMULA, StepLog
from .optimizer import AdamWOptions
from .program import build_executor, load_layout


@dataclass(frozen=True)
class RunOptions:
    """What a run is given besides its program; every field is a command-line option.

    data: demo, file:PATH (bytes), random:VOCAB[:SEED] or fixed:VOCAB[:SEED]. lr: peak rate.
    floor: last rate as a share of the peak. warmup: steps. clip: global gradient norm, 0 for none.
    eval_every: steps between evaluations, 0 for one at the end; eval_batches: batches of each.
    log_every: steps between printed lines; metrics.jsonl has every step.
    """

    data: str = "demo"
    steps: int = 100
    seed: int = 0
    lr: float = 1e-3
    schedule: str = "cosine"
    warmup: int = 10
    floor: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0
    eval_every: int = 0
    eval_batches: int = 0
    log_every: int = 1
    out: str = "run"
    no_compile: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One option per field of RunOptions."""
    for item in fields(RunOptions):
        name = f"--{item.name.replace('_', '-')}"
        if item.type is bool or item.type == "bool":
            parser.add_argument(name, action="store_true")
        elif item.name == "schedule":
            parser.add_argument(name, choices=SCHEDULES, default=item.default)
        else:
            parser.add_argument(name, type=type(item.default), default=item.default)


def main(folder: Path) -> None:
    """Train the program in `folder` with the command line's options; exit code 2 on bad input."""
    parser = argparse.ArgumentParser(description=f"Run the program in {folder.name}")
    add_arguments(parser)
    options = RunOptions(**vars(parser.parse_args()))
    try:
        device = start_distributed()
        run(folder, options, device)
    except ValueError as error:
        if int(os.environ.get("RANK", "0")) == 0:
            print(f"error: {error}", file=sys.stderr, flush=True)
        sys.stderr.flush()
        os._exit(2)
    finish()


def finish() -> None:
    """Leave together and at once: tearing gloo's groups down one by one races with its threads."""
    if dist.is_initialized():
        dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


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


def run(folder: Path, options: RunOptions, device: torch.device) -> None:
    """Build the executor and train; rank 0 writes the log and prints."""
    layout = load_layout(folder)
    mesh.start(layout.mesh, device)
    loud = not dist.is_initialized() or dist.get_rank() == 0
    say: Callable[[str], None] = _say if loud else _silent
    session = Session(folder, layout, options, device, say)
    session.train()


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

    def _executor(self, folder: Path) -> Executor:
        options = self.options
        adamw = AdamWOptions(
            options.beta1, options.beta2, options.eps, options.weight_decay, options.clip
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

    def train(self) -> None:
        out = Path(self.options.out)
        peak = peak_flops(self.device)
        world = dist.get_world_size() if dist.is_initialized() else 1
        if peak:
            self.say(f"mfu of {peak / 1e12:.0f} Tflop/s a card: {MFU_FORMULA}")
        with _Log(out, self.layout, self.options, peak and peak * world, self.say) as log:
            for step in range(self.options.steps):
                self._step(step, log)
                if self._evaluates_after(step):
                    self._evaluate(step, log)
            if self.options.steps:
                self._final(log)

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
    ) -> None:
        self.log: StepLog | None = None
        if say is not _say:
            return
        path = out / "metrics.jsonl"
        path.unlink(missing_ok=True)  # a run starts its own log
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
