"""One process of the pool: runs its rank of a program and returns what the rank holds.

The emitted folder is imported afresh for every job, its copy of `runtime` under that name.
"""

import gc
import importlib
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Job:
    """steps: per step the global batch (tokens, labels) and the learning rate. others: per step
    by role what else a model reads. options: fields of OptimizerOptions. resume: steps
    before the run is saved and taken up again, 0: never. cuda: each rank on a GPU of its own, by
    NCCL; else on the CPU, by gloo."""

    folder: Path
    world: int
    steps: list[tuple[np.ndarray, np.ndarray, float]]
    seed: int
    options: dict[str, Any]
    compiled: bool
    timeout_s: float
    resume: int = 0
    cuda: bool = False
    others: tuple[dict[str, np.ndarray], ...] = ()


@dataclass(frozen=True)
class RankResult:
    """coordinates: by mesh axis. grads, params: this rank's shard of each bucket, flat."""

    coordinates: dict[str, int]
    losses: list[float]
    norms: list[float]
    grads: dict[str, np.ndarray]
    params: dict[str, np.ndarray]


def serve(connection: Connection) -> None:
    """Answer (rank, job) with (result, "") or (None, traceback), until None comes."""
    torch.set_num_threads(1)
    sys.dont_write_bytecode = True
    gc.freeze()  # what is imported by now; collections look at what jobs leave alone
    while (task := connection.recv()) is not None:
        answer: tuple[RankResult | None, str]
        try:
            answer = run_rank(*task), ""
        except Exception:
            answer = None, traceback.format_exc()
        gc.collect()
        connection.send(answer)


def run_rank(rank: int, job: Job) -> RankResult:
    """Run one rank of a job."""
    device = torch.device("cuda", rank) if job.cuda else torch.device("cpu")
    if job.cuda:
        torch.cuda.set_device(device)
    with _process_group(rank, job, device), _imported(job.folder):
        return _train(job, device)


@contextmanager
def _process_group(rank: int, job: Job, device: torch.device) -> Iterator[None]:
    if job.world == 1:
        yield
        return
    dist.init_process_group(
        "nccl" if job.cuda else "gloo",
        init_method=f"file://{job.folder}/rendezvous",
        rank=rank,
        world_size=job.world,
        timeout=timedelta(seconds=job.timeout_s),
        device_id=device if job.cuda else None,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _imported(folder: Path) -> Iterator[None]:
    _forget()
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        # A group keeps a thread of gloo that wakes every 10 ms as long as anything refers to it.
        if mesh := sys.modules.get("runtime.engine.mesh"):
            mesh._state.groups.clear()
        _forget()
        # Named by string, as the attribute would import it: seconds, for programs not compiled.
        if compiled := sys.modules.get("torch._dynamo"):
            compiled.reset()


def _forget() -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == "runtime" or n[:8] == "program_"]:
        del sys.modules[name]
    importlib.invalidate_caches()


def _train(job: Job, device: torch.device) -> RankResult:
    runtime = {
        n: importlib.import_module(f"runtime.{n}")
        for n in ("engine.mesh", "training.program", "optimizers.options")
    }
    mesh, program = runtime["engine.mesh"], runtime["training.program"]
    layout = program.load_layout(job.folder)
    mesh.start(layout.mesh, device)
    options = _options(runtime["optimizers.options"], job.options)

    def built(seed: int) -> Any:
        return program.build_executor(
            job.folder, layout, options, seed=seed, compiler=_compiler(job)
        )

    executor = built(job.seed)
    grads = _record_first_grads(executor)
    losses, norms = [], []
    for done, (tokens, labels, rate) in enumerate(job.steps):
        if job.resume and done == job.resume:
            # Other weights than the run began with, so that all of them have to be loaded.
            executor = _taken_up(executor, built(job.seed + 1), job)
        given = {"tokens": tokens, "labels": labels, "rows": np.arange(len(tokens))}
        given |= job.others[done] if job.others else {}
        own = _micro_batches(layout, mesh, given, (job.seed, done))
        loss, norm = executor.train_step(own, int((labels >= 0).sum()), rate)
        losses.append(loss)
        norms.append(norm)
    coordinates = {axis: mesh.coordinate(axis) for axis in layout.mesh}
    params = {name: _array(bucket.shard) for name, bucket in executor.buckets.items()}
    return RankResult(coordinates, losses, norms, grads, params)


def _array(x: torch.Tensor) -> np.ndarray:
    """A copy; of bf16, which numpy does not have, in float32."""
    return (x.float() if x.dtype is torch.bfloat16 else x).cpu().numpy().copy()


def _taken_up(executor: Any, fresh: Any, job: Job) -> Any:
    """`fresh`, after it loaded what `executor` saved."""
    checkpoint = importlib.import_module("runtime.checkpoint")
    folder, optimizer = job.folder / "checkpoints", executor.optimizer
    state = checkpoint.State(
        step=job.resume,
        updates=optimizer.updates,
        skipped=0,
        samples=0,
        seq=0,
        seed=job.seed,
        data="",
        data_identity="",
        data_position={},
        model=executor.layout.model,
        optimizer=optimizer.options.name,
        numbers=dict(optimizer.rule.numbers),
        losses=[],
    )
    saver = checkpoint.Checkpointer(folder, executor)
    saver.save(state)
    saver.wait()
    if job.world > 1:
        dist.barrier()  # rank 0 publishes once all have written
    checkpoint.load(fresh, checkpoint.read_manifest(folder / f"step_{job.resume:08d}"))
    return fresh


def _options(module: Any, values: dict[str, Any]) -> Any:
    """The program's own class of options; groups came as dictionaries."""
    groups = tuple(module.Group(**group) for group in values["groups"])
    return module.OptimizerOptions(**values | {"groups": groups})


def _compiler(job: Job) -> Callable | None:
    return importlib.import_module("runtime.engine.compiling").Compiler() if job.compiled else None


def _record_first_grads(executor: Any) -> dict[str, np.ndarray]:
    """Filled at the first optimizer step with what it is handed, before clipping."""
    grads: dict[str, np.ndarray] = {}
    step = executor.optimizer.step

    def recorded(*args: Any) -> Any:
        for name, bucket in executor.buckets.items():
            grads.setdefault(name, _array(bucket.grad_shard))
        return step(*args)

    executor.optimizer.step = recorded
    return grads


def _micro_batches(
    layout: Any, mesh: Any, given: dict[str, np.ndarray], drawn: tuple[int, int]
) -> list[dict[str, torch.Tensor]]:
    """This rank's rows of the global batch, cut into micro-batches. drawn: seed and step."""
    rows = layout.micro_batch * layout.num_microbatches
    first = mesh.index(*mesh.BATCH) * rows
    cut = (torch.from_numpy(x[first : first + rows].copy()) for x in given.values())
    own = [x.to(mesh.device()) for x in cut]
    parts = zip(*(x.split(layout.micro_batch) for x in own), strict=True)
    inputs = importlib.import_module("runtime.engine.inputs")
    draws = inputs.step_draws(*drawn, mesh.device())
    named = (dict(zip(given, part, strict=True)) for part in parts)
    return [inputs.batch_of(layout.inputs, draws=draws, **part) for part in named]
