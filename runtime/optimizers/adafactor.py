"""Adafactor (Shazeer & Stern 2018, arXiv 1804.04235), with torch.optim.Adafactor's defaults.

The second moment of a matrix is kept as its rows' and its columns' means. They are sums over the
logical matrix: every rank adds what its boxes hold, the sums are reduced over dp and tp, and each
rank keeps the two short vectors whole. A parameter of more dims is a stack of matrices of its last
two. So do the root mean squares of a parameter, which scales its
rate, and of its update, which is clipped at 1. With t updates and rho = min(lr, 1 / sqrt(t)):

    row, column <- their means of g^2, decayed by 1 - t^-0.8
    u = g / sqrt(row column / mean(row))             (a vector: g / sqrt(second moment))
    w <- (1 - lr decay) w - max(1e-3, rms(w)) rho u / max(1, rms(u))

A bucket's sums travel alone, so that a tied parameter's homes add them in one order and agree to
the last bit.
"""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ..engine import mesh
from ..engine.boxes import Box
from ..engine.buckets import FlatBucket
from ..engine.layout import Layout, Param
from .options import OptimizerOptions
from .rule import Part, Rule, Run

DECAY_POWER = -0.8
LEAST_RMS = 1e-3


class Adafactor(Rule):
    def __init__(self, options: OptimizerOptions, layout: Layout) -> None:
        self.options, self.numbers = options, {}
        self.layout = layout
        self.wide = torch.float64 if layout.dtype == "float64" else torch.float32
        self.eps = torch.finfo(self.wide).eps
        self.vectors = {
            param.name: self._empty_sums(param.shape)
            for param in layout.params
            if self.kind(param) == "matrix"
        }

    def kind(self, param: Param) -> str:
        return "matrix" if len(param.shape) > 1 else "vector"

    def states(self, kind: str) -> tuple[str, ...]:
        return () if kind == "matrix" else ("exp_avg_sq",)

    def whole_states(self, bucket: FlatBucket) -> dict[tuple[str, str], Tensor]:
        found = {}
        for name in self._matrices(bucket):
            found["row", name], found["column", name] = self.vectors[name]
        return found

    def update(self, bucket: FlatBucket, runs: Sequence[Run], lr: float, count: int) -> None:
        share = count**DECAY_POWER
        rms = self._first_pass(bucket, runs, share)
        updates = [(run, self._direction(run, share)) for run in runs]
        sizes = self._mean_squares(bucket, updates)
        for run, update in updates:
            rate = lr * run.group.lr_scale
            run.weights.mul_(1.0 - rate * run.decay)
            for part in run.parts:
                name = part.param.name
                step = rms[name].clamp(min=LEAST_RMS) * min(rate, count**-0.5)
                step = step / sizes[name].sqrt().clamp(min=1.0)
                weights = part.view(run.weights)
                weights.sub_((part.view(update) * step).to(weights.dtype))

    def _first_pass(
        self, bucket: FlatBucket, runs: Sequence[Run], share: float
    ) -> dict[str, Tensor]:
        """Bring rows and columns up to date; returns each parameter's root mean square."""
        names = [entry.param for entry in bucket.bucket.entries]
        matrices = self._matrices(bucket)
        squares = {name: self._zeros(()) for name in names}
        sums = {name: self._empty_sums(self._param(name).shape) for name in matrices}
        for run in runs:
            for part in run.parts:
                name, box = part.param.name, part.piece.box
                squares[name] += part.view(run.weights).to(self.wide).square().sum()
                if name in sums:
                    square = part.view(run.grad).to(self.wide).square()
                    for total, at, dim in zip(sums[name], _places(box), (-1, -2), strict=True):
                        total[at] += square.sum(dim)
        self._reduce(bucket, {n: [squares[n], *sums.get(n, ())] for n in names})
        for name in matrices:
            *_, rows, columns = self._param(name).shape
            for kept, total, count in zip(
                self.vectors[name], sums[name], (columns, rows), strict=True
            ):
                kept.lerp_(total / count, share)
        return {n: (s / math.prod(self._param(n).shape)).sqrt() for n, s in squares.items()}

    def _direction(self, run: Run, share: float) -> Tensor:
        """The gradient over the root of its second moment, flat, before clipping."""
        if run.kind == "vector":
            second = run.states["exp_avg_sq"]
            second.lerp_(run.grad.square(), share)
            return second.to(self.wide).clamp(min=self.eps**2).rsqrt() * run.grad
        update = torch.zeros(run.stop - run.start, dtype=self.wide, device=run.grad.device)
        for part in run.parts:
            row, column = self._second_moment(part)
            second = (row * column).clamp_(min=self.eps**2)
            part.view(update).copy_(second.rsqrt_().mul_(part.view(run.grad)))
        return update

    def _second_moment(self, part: Part) -> tuple[Tensor, Tensor]:
        """The factors for a box of a stack of matrices: [..., rows, 1] and [..., 1, columns]."""
        (row, column), (first, second) = self.vectors[part.param.name], _places(part.piece.box)
        share = row / row.mean(-1, keepdim=True).clamp(min=self.eps)
        return share[first].unsqueeze(-1), column[second].unsqueeze(-2)

    def _mean_squares(
        self, bucket: FlatBucket, updates: list[tuple[Run, Tensor]]
    ) -> dict[str, Tensor]:
        """Of each parameter's update, over the logical tensor."""
        squares = {entry.param: self._zeros(()) for entry in bucket.bucket.entries}
        for run, update in updates:
            for part in run.parts:
                squares[part.param.name] += part.view(update).square().sum()
        self._reduce(bucket, {name: [total] for name, total in squares.items()})
        return {n: s / math.prod(self._param(n).shape) for n, s in squares.items()}

    def _reduce(self, bucket: FlatBucket, sums: dict[str, list[Tensor]]) -> None:
        """Sum in place over the ranks that hold different boxes of a parameter."""
        by_axes: dict[tuple[str, ...], list[Tensor]] = {}
        for name, found in sums.items():
            by_axes.setdefault(bucket.placed[name], []).extend(found)
        flat = {axes: torch.cat([t.reshape(-1) for t in ts]) for axes, ts in by_axes.items()}
        if bucket.cuts > 1:
            joint = torch.cat(list(flat.values()))
            dist.all_reduce(joint, group=bucket.group)
            parts = joint.split([part.numel() for part in flat.values()])
            flat = dict(zip(flat, parts, strict=True))
        for axes, part in flat.items():
            if axes and (group := mesh.group(*axes)) is not None:
                dist.all_reduce(part, group=group)
            sizes = [t.numel() for t in by_axes[axes]]
            for total, found in zip(by_axes[axes], part.split(sizes), strict=True):
                total.copy_(found.view_as(total))

    def _matrices(self, bucket: FlatBucket) -> list[str]:
        names = [entry.param for entry in bucket.bucket.entries]
        return [name for name in names if name in self.vectors]

    def _param(self, name: str) -> Param:
        return self.layout.param(name)

    def _empty_sums(self, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return zeros for the sums of a stack of matrices over columns, and over rows."""
        return self._zeros(shape[:-1]), self._zeros((*shape[:-2], shape[-1]))

    def _zeros(self, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(shape, dtype=self.wide, device=mesh.device())


def _places(box: Box) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return where a box lies in the sums over columns, and in those over rows."""
    *stack, rows, columns = (slice(a, a + n) for a, n in zip(box.offsets, box.sizes, strict=True))
    return (*stack, rows), (*stack, columns)
