"""Run one step of an emitted program, rank by rank, without memory, devices or peers.

Every rank of a stage runs the same text; ranks differ in their coordinates. Those that can differ
in what they do are run: every place along the pipeline, the first and the last along the other
axes, and one between them where the sequence is cut, whose first and last have one neighbour only.
"""

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..engine import mesh
from ..engine.agreement import Agreement
from ..engine.executor import Executor
from ..engine.inputs import BESIDE, batch_of
from ..engine.layout import Layout
from ..engine.stage import Batch
from ..optimizers.optimizer import Optimizer
from ..training.options import RunOptions
from ..training.program import build_executor, load_layout
from ..training.rule_options import optimizer_options
from .found import DryRank, DryRun
from .held import Held
from .meeting import check_meetings
from .memo import Memo
from .world import META, DryRunError, Message, Trace, World, alone


class _Marks:
    """Marks of actions, for what errors and peaks name."""

    def __init__(self, trace: Trace, held: Held) -> None:
        self.trace, self.held = trace, held

    def mark(self, kind: str, stage: int = 0, microbatch: int = -1) -> None:
        place = f", micro-batch {microbatch}" if microbatch >= 0 else ""
        self.held.action = f"{kind} of stage {stage}{place}"
        self.trace.actions.append((len(self.trace.events), self.held.action))


class _Valueless(Agreement):
    """Sums of a step that have no values."""

    def read(self, totals: Tensor) -> list[float]:
        return [0.0] * totals.numel()


def dry_run(
    folder: Path, options: RunOptions, progress: Callable[[str], None] = lambda _: None
) -> DryRun:
    """Run one step of the program in `folder`. progress: is told each rank.

    Raises DryRunError for a program that fails, whose messages do not meet, or that waits for ever.
    """
    started = time.perf_counter()
    layout = load_layout(folder)
    world = prod(layout.mesh.values())
    known: dict[Any, Any] = {}
    found, traces = [], {}
    chosen = list(_unlike(layout.mesh))
    for number, coordinates in enumerate(chosen):
        rank = _rank_of(coordinates, layout.mesh)
        progress(f"rank {rank}, {number + 1} of {len(chosen)} unlike ones")
        result, traces[rank] = _run_rank(folder, layout, options, rank, world, known)
        found.append(result)
    progress(f"meetings of {sum(trace.num_messages for trace in traces.values()):,} messages")
    check_meetings(traces)
    return DryRun(layout.mesh, world, tuple(found), time.perf_counter() - started)


def _unlike(sizes: dict[str, int]) -> Iterator[dict[str, int]]:
    """Return the coordinates of ranks that can differ in what they do."""
    places = []
    for axis, size in sizes.items():
        ends = {0, size - 1}
        if mesh.ROLES[axis] in mesh.PIPELINE:
            ends = set(range(size))
        elif mesh.ROLES[axis] in mesh.CONTEXT:
            ends.add(size // 2)
        places.append(sorted(ends))
    for chosen in itertools.product(*places):
        yield dict(zip(sizes, chosen, strict=True))


def _rank_of(coordinates: dict[str, int], sizes: dict[str, int]) -> int:
    rank = 0
    for axis, size in sizes.items():
        rank = rank * size + coordinates[axis]
    return rank


def _run_rank(
    folder: Path, layout: Layout, options: RunOptions, rank: int, size: int, known: dict[Any, Any]
) -> tuple[DryRank, Trace]:
    held = Held()
    world = World(rank, size, held)
    trace = world.trace
    with alone(world), torch.no_grad():
        mesh.start(layout.mesh, META)
        marks = _Marks(trace, held)
        marks.mark("START")
        try:
            executor = build_executor(
                folder,
                layout,
                optimizer_options(options, layout),
                seed=options.seed,
                compiler=Memo(trace, held, known),
            )
            executor.beacon, executor.agreement = marks, _Valueless()
            held.see(_kept(executor))
            between = held.live
            executor.train_step(_batches(layout), 1, options.lr)
        except Exception as error:
            if isinstance(error, MemoryError):
                raise
            raise DryRunError(
                f"rank {rank} ({_said(mesh.coordinates_of(rank, layout.mesh))}) fails in "
                f"{held.action}: {type(error).__name__}: {error}"
            ) from error
        pipeline_rank = mesh.index(*mesh.PIPELINE)
        axes = [_axes(group.ranks, layout.mesh) for group in trace.groups]
        sent: dict[str, int] = defaultdict(int)
        for event in trace.events:
            if isinstance(event, Message):
                sent[axes[event.place]] += event.size_bytes
    coordinates = mesh.coordinates_of(rank, layout.mesh)
    return (
        DryRank(
            rank=rank,
            coordinates={axis: coordinates[axis] for axis in layout.mesh},
            pipeline_rank=pipeline_rank,
            actions=len(executor.schedule),
            messages=trace.num_messages,
            sent_bytes=dict(sent),
            held_bytes=between,
            peak_bytes=held.peak,
            at=held.at,
        ),
        trace,
    )


def _kept(executor: Executor[Optimizer]) -> Iterator[Tensor]:
    """Return what a rank holds between steps."""
    for bucket in executor.buckets.values():
        kept = (bucket.full, bucket.shard, bucket.grad, bucket.grad_shard)
        yield from (tensor for tensor in kept if tensor is not None)
    for run in executor.optimizer.all_runs():
        yield run.weights
        yield from run.states.values()
    for stage in executor.stages.values():
        yield from stage.context_values.values()


def _batches(layout: Layout) -> list[Batch]:
    tokens = torch.empty((layout.micro_batch, layout.seq), dtype=torch.int64, device=META)
    sizes = {"B": layout.micro_batch, "S": layout.seq}
    others = {
        i.role: torch.empty([int(sizes.get(n, n)) for n in i.shape], dtype=torch.int64, device=META)
        for i in layout.inputs
        if i.role in BESIDE
    }
    batch = batch_of(layout.inputs, tokens, tokens, **others)
    return [batch] * layout.num_microbatches


def _axes(ranks: tuple[int, ...], sizes: dict[str, int]) -> str:
    """Name the axes along which ranks lie, joined by +."""
    places = [mesh.coordinates_of(rank, sizes) for rank in ranks]
    return "+".join(axis for axis in sizes if len({place[axis] for place in places}) > 1)


def _said(coordinates: dict[str, int]) -> str:
    return " ".join(f"{axis}={at}" for axis, at in sorted(coordinates.items()))
