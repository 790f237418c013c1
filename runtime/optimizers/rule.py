"""What an update rule is, and the runs of a shard that it updates.

Note. A bucket's shard is cut into *runs*: neighbouring parameters that are updated alike. A run's
tensors are flat; a rule that must see matrices reaches them through the run's *parts*, the logical
boxes that lie in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from ..engine.boxes import Piece
from ..engine.buckets import FlatBucket
from ..engine.layout import Layout, Param
from ..engine.shards import local_pieces, view
from .options import Group, OptimizerOptions


@dataclass(frozen=True)
class Part:
    """A logical box of a parameter in a run. start: element of the run where its piece begins."""

    param: Param
    start: int
    piece: Piece

    def view(self, flat: Tensor) -> Tensor:
        """The box in one of the run's flat tensors."""
        return view(flat, self.start, self.piece)


@dataclass(frozen=True)
class Run:
    """Elements start..stop of a bucket's shard, of one kind and group.

    weights: what is updated, the shard or its float32 master. grad: clipped, but for rules that
    scale it; empty where the run is frozen. states: by name.
    All others flat, [stop - start].
    """

    kind: str
    group: Group
    start: int
    stop: int
    parts: tuple[Part, ...]
    weights: Tensor
    grad: Tensor
    states: dict[str, Tensor]
    trained: bool = True

    @property
    def decay(self) -> float:
        return self.group.weight_decay or 0.0


class Rule(Protocol):
    """An update rule.

    numbers: what a checkpoint keeps of it besides tensors. like_weights: states that take steps as
    weights do, and are rounded like them. averages: the weights to evaluate and export are an
    average, not those that are trained. scales: updates multiply gradients by `scale`, the clip,
    while they read them. fuses: one launch of AdamW's kernel updates all.
    """

    numbers: dict[str, float]
    fuses: bool = False
    scales: bool = False
    scale: float = 1.0
    like_weights: tuple[str, ...] = ()
    averages: bool = False

    def kind(self, param: Param) -> str:
        """Parameters of one kind have the same states and may share a run."""
        return ""

    def states(self, kind: str) -> tuple[str, ...]:
        """Names of the states that have an element per weight."""
        ...

    def start(self, run: Run) -> None:
        """Fill states that begin with something else than 0."""
        return None

    def begin_step(self, lr: float, count: int) -> None:
        """Prepare for the buckets of a step; count: updates up to and with this one."""
        return None

    def together(self, buckets: Sequence[FlatBucket]) -> list[list[FlatBucket]]:
        """Return the buckets in order, those that are updated at once in one list."""
        return [[bucket] for bucket in buckets]

    def update_all(self, given: Sequence["Updated"], lr: float, count: int) -> None:
        """Update the runs of buckets that are updated at once. Called for all their buckets in
        order by all ranks of a stage, also where a rank holds no run of one, so that rules may
        communicate."""
        for bucket, runs in given:
            self.update(bucket, runs, lr, count)

    def update(self, bucket: FlatBucket, runs: Sequence[Run], lr: float, count: int) -> None:
        """Update the runs of one bucket: of rules that take each by itself."""
        raise TypeError(f"{type(self).__name__} updates buckets together")

    def average(self, run: Run) -> Tensor:
        """The weights to evaluate and export, flat; asked for where `averages` says so."""
        return run.weights

    def whole_states(self, bucket: FlatBucket) -> dict[tuple[str, str], Tensor]:
        """States that each rank of a stage holds whole, by (state, parameter)."""
        return {}


Updated = tuple[FlatBucket, Sequence[Run]]


def widened(run: Run) -> Run:
    """A copy of a run in float32."""
    states = {name: flat.float() for name, flat in run.states.items()}
    return replace(run, weights=run.weights.float(), grad=run.grad.float(), states=states)


def narrowed(run: Run) -> Run:
    """A run whose gradient has the dtype of what is updated."""
    if run.grad.dtype == run.weights.dtype:
        return run
    return replace(run, grad=run.grad.to(run.weights.dtype))


def make_runs(
    bucket: FlatBucket, layout: Layout, rule: Rule, options: OptimizerOptions, weights: Tensor
) -> tuple[Run, ...]:
    """The runs of a bucket's shard, with fresh states; weights: what is updated, flat."""
    params = {p.name: p for p in layout.params}
    spans = bucket.runs(lambda e: (rule.kind(params[e.param]), options.group_of(e.param, e.decay)))
    pieces = list(local_pieces(bucket, layout))
    runs = []
    for start, stop, (kind, group) in spans:
        parts = tuple(
            Part(params[name], at - start, piece)
            for name, at, piece in pieces
            if start <= at < stop
        )
        own = weights[start:stop].detach()
        kinds = rule.states(kind) if bucket.trainable else ()
        states = {name: torch.zeros_like(own) for name in kinds}
        grad = bucket.grad_shard[start:stop]
        run = Run(kind, group, start, stop, parts, own, grad, states, bucket.trainable)
        if run.trained:
            rule.start(run)
        runs.append(run)
    return tuple(runs)
