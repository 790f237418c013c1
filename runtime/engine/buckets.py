"""Parameters and gradients in flat buckets.

Note. Four tensors per bucket look alike: `full` holds every local parameter of the bucket, [numel];
`shard` is this rank's cut of it, [numel / cuts], where storage is cut over data x context; `grad`
and `grad_shard` are the same for gradients. Which exist when is the ZeRO level:

    zero  full              shard           grad                     grad_shard
    0     always            = full          always                   = grad
    1     always            view of full    always                   view of grad
    2     always            view of full    during one backward      always
    3     while gathered    always          during one backward      always

A frozen bucket has parameters alone, stored in the same way.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from . import mesh
from .initial import initial_value
from .layout import Bucket, Entry, Layout, Param

Key = TypeVar("Key")
_NONE: Mapping[str, Tensor] = MappingProxyType({})


class FlatBucket:
    """One bucket on one rank. stored: initial values that recipes name, by digest."""

    def __init__(
        self,
        bucket: Bucket,
        layout: Layout,
        seed: int,
        device: torch.device,
        stored: Mapping[str, Tensor] = _NONE,
    ) -> None:
        self.bucket, self.zero, self.device = bucket, layout.zero, device
        self.trainable = bucket.trainable
        self.dtype = getattr(torch, bucket.dtype or layout.dtype)
        wide = layout.master or layout.wide_grads
        self.grad_dtype = torch.promote_types(self.dtype, torch.float32) if wide else self.dtype
        # What is wider than the model keeps its digits on the way.
        reduced = getattr(torch, layout.reduce_dtype)
        self.reduce_dtype = torch.promote_types(reduced, self.dtype) if bucket.dtype else reduced
        self.group = mesh.group_of(*(mesh.STORAGE if layout.zero else mesh.REDUCED))
        self.replicas = mesh.group_of(*mesh.REPLICA) if layout.zero else None
        self.placed = {p.name: _axes_of(p) for p in layout.params}
        self.cuts = mesh.count(*mesh.STORAGE) if layout.zero else 1
        self.index = mesh.index(*mesh.STORAGE) if layout.zero else 0
        self.shard_numel = bucket.numel // self.cuts
        self.partial = [(a, b, axes) for a, b, axes in self._regions() if axes]
        self.full: Tensor | None = self._initial(layout, seed, stored)
        self.shard = self._cut(self.full).clone() if layout.zero == 3 else self._cut(self.full)
        if layout.zero == 3:
            self.full = None
        self.grad: Tensor | None = (
            self._empty_grad(bucket.numel).zero_() if layout.zero < 2 and bucket.trainable else None
        )
        self.grad_shard = (
            self._cut(self.grad)
            if self.grad is not None
            else self._empty_grad(self.shard_numel if bucket.trainable else 0).zero_()
        )
        # Views of what persists, made once: by the tensor that they are of.
        self._lasting: dict[int, dict[str, Tensor]] = {}
        self.expected = 0  # calls of `reduce` in a step
        self.begin()
        self._gather: dist.Work | None = None
        # Reductions under way: what they bring, and what they read.
        self._reduce: list[tuple[dist.Work | None, Tensor, Tensor]] = []
        self._replicas: tuple[dist.Work, Tensor] | None = None

    @property
    def first_home(self) -> bool:
        """Tell whether this rank's stage is the first that holds the bucket."""
        return mesh.index(*mesh.PIPELINE) == self.bucket.homes[0]

    @property
    def clears_its_shard(self) -> bool:
        """Tell whether `grad_shard` is all that is cleared for the next step. Level 1 clears all of
        `grad`."""
        return self.zero >= 2 or self.cuts == 1

    def differs_over(self, param: str) -> tuple[str, ...]:
        """Axes along which ranks hold other elements of a parameter; see `mesh.owns`."""
        stored = mesh.names(*mesh.STORAGE) if self.cuts > 1 else ()
        return (*mesh.names(*mesh.PIPELINE), *stored, *self.placed[param])

    def _regions(self) -> list[tuple[int, int, tuple[str, ...]]]:
        """(start, stop, axes) of entries that are partial over the same axes, in elements."""
        entries = self.bucket.entries
        starts = [e for n, e in enumerate(entries) if not n or e.partial != entries[n - 1].partial]
        stops = [e.offset for e in starts[1:]] + [self.bucket.numel]
        return [(e.offset, stop, e.partial) for e, stop in zip(starts, stops, strict=True)]

    def _empty(self, numel: int) -> Tensor:
        return torch.empty(numel, dtype=self.dtype, device=self.device)

    def _empty_grad(self, numel: int) -> Tensor:
        return torch.empty(numel, dtype=self.grad_dtype, device=self.device)

    def _cut(self, full: Tensor) -> Tensor:
        return full[self.index * self.shard_numel : (self.index + 1) * self.shard_numel]

    def _initial(self, layout: Layout, seed: int, stored: Mapping[str, Tensor]) -> Tensor:
        full = self._empty(self.bucket.numel).zero_()
        if full.is_meta:  # of a dry run, which has shapes alone
            return full
        for entry in self.bucket.entries:
            param = layout.param(entry.param)
            cuts = [(d, o, mesh.coordinate(a), mesh.size(a)) for d, o, a in param.shards]
            value = initial_value(
                param.name, param.shape, param.init, seed=seed, dtype=self.dtype,
                device=self.device, shards=tuple(cuts), stored=stored,
            )  # fmt: skip
            full[entry.offset : entry.offset + value.numel()] = value.reshape(-1)
        return full

    # Parameters

    def gather(self) -> None:
        """Start gathering the parameters; does nothing when they are here."""
        if self.full is None:
            self.full = self._empty(self.bucket.numel)
            if self.group is None:
                self.full.copy_(self.shard)
            else:
                self._gather = dist.all_gather_into_tensor(
                    self.full, self.shard, group=self.group, async_op=True
                )

    def params(self) -> dict[str, Tensor]:
        """Views by parameter name, gathered."""
        self.gather()
        if self._gather is not None:
            self._gather.wait()
            self._gather = None
        assert self.full is not None
        return self._views(self.full, lasts=self.zero < 3)

    def release(self) -> None:
        """Free what was gathered."""
        if self.zero == 3:
            self.full = None

    def _views(self, flat: Tensor, lasts: bool) -> dict[str, Tensor]:
        """Return views by parameter. lasts: the tensor is the bucket's as long as it lives."""
        if not lasts:
            return self._new_views(flat)
        if id(flat) not in self._lasting:
            self._lasting[id(flat)] = self._new_views(flat)
        return self._lasting[id(flat)]

    def _new_views(self, flat: Tensor) -> dict[str, Tensor]:
        views = {}
        for entry in self.bucket.entries:
            numel = 1
            for size in entry.shape:
                numel *= size
            views[entry.param] = flat[entry.offset : entry.offset + numel].view(entry.shape)
        return views

    # Gradients

    def grads(self) -> dict[str, Tensor]:
        """Views to add gradients into."""
        if self.grad is None:
            self.grad = self._empty_grad(self.bucket.numel).zero_()
        return self._views(self.grad, lasts=self.zero < 2)

    def begin(self, completed: int = 0) -> None:
        """Count the reductions of a step from here: none was asked for, or `completed`."""
        self.completed = completed

    def forget(self) -> None:
        """Forget what a recording that failed left under way: none of it has run."""
        self._gather, self._reduce, self._replicas = None, [], None
        if self.zero == 3:
            self.full = None
        if self.zero >= 2:
            self.grad = None

    def reduce(self) -> None:
        """Sum over ranks where it is due, after a stage's last gradient of a micro-batch.

        Levels 2 and 3 reduce every micro-batch, 0 and 1 the last one only; asynchronously.
        """
        self.completed += 1
        if self.zero < 2 and self.completed < self.expected:
            return
        assert self.grad is not None
        travels = self.group is not None or self.replicas is not None
        carried = self.grad.to(self.reduce_dtype) if travels else self.grad
        for start, stop, axes in self.partial:
            self._sum(carried[start:stop], mesh.group(*axes))
        if self.zero == 0:
            self._all_reduce(carried)
        else:
            self._reduce_scatter(carried)
        if self.zero >= 2:
            self.grad = None

    def _all_reduce(self, carried: Tensor) -> None:
        if self.group is not None:
            work = dist.all_reduce(carried, group=self.group, async_op=True)
            self._reduce.append((work, carried, carried))

    def _reduce_scatter(self, carried: Tensor) -> None:
        target, work = carried.new_empty(self.shard_numel), None
        if self.group is None:
            target.copy_(carried)
        else:
            work = dist.reduce_scatter_tensor(target, carried, group=self.group, async_op=True)
        self._reduce.append((work, target, carried))

    def _sum(self, flat: Tensor, group: dist.ProcessGroup | None) -> None:
        """Sum over ranks in place, on the way in the dtype of reductions."""
        if group is None or not flat.numel():
            return
        carried = flat.to(self.reduce_dtype)
        dist.all_reduce(carried, group=group)
        if carried is not flat:
            flat.copy_(carried)

    def finish_reductions(self) -> None:
        """Wait for the reductions under way and add what they brought.

        The last one of a step is followed by a sum over replicas, which `finish` waits for.
        """
        reduced = bool(self._reduce)
        while self._reduce:
            work, brought, _ = self._reduce.pop(0)
            if work is not None:
                work.wait()
            if self.zero >= 2:
                self.grad_shard.add_(brought)
            elif brought is not self.grad:
                self.grad_shard.copy_(brought)

        if reduced and self.replicas is not None and self.completed >= self.expected:
            carried = self.grad_shard.to(self.reduce_dtype)
            work = dist.all_reduce(carried, group=self.replicas, async_op=True)
            self._replicas = (work, carried)

    def finish(self) -> None:
        """Wait until `grad_shard` is the sum over all ranks of the step's gradients."""
        self.finish_reductions()
        if self._replicas is not None:
            work, carried = self._replicas
            work.wait()
            self._replicas = None
            if carried is not self.grad_shard:
                self.grad_shard.copy_(carried)

    def sum_homes(self, group: dist.ProcessGroup | None) -> None:
        """Sum the reduced gradients of a tied parameter over the pp ranks that hold it."""
        self._sum(self.grad_shard, group)

    def zero_grads(self) -> None:
        """Clear what the next step accumulates into."""
        (self.grad if self.grad is not None and self.zero < 2 else self.grad_shard).zero_()

    # The optimizer's side

    def updated(self) -> None:
        """Bring `full` up to date, where it persists, after the optimizer changed `shard`."""
        if self.zero in (1, 2) and self.group is not None:
            assert self.full is not None
            dist.all_gather_into_tensor(self.full, self.shard.clone(), group=self.group)

    def runs(self, key: Callable[[Entry], Key]) -> list[tuple[int, int, Key]]:
        """(start, stop, key) of neighbouring entries of one key in this rank's shard, in elements.

        Padding belongs to the run before it; its gradients and values are 0 and stay 0.
        """
        entries = self.bucket.entries
        stops = [e.offset for e in entries[1:]] + [self.bucket.numel]
        low, high = self.index * self.shard_numel, (self.index + 1) * self.shard_numel
        runs: list[tuple[int, int, Key]] = []
        for entry, stop in zip(entries, stops, strict=True):
            start, stop = max(entry.offset, low) - low, min(stop, high) - low
            if start >= stop:
                continue
            found = key(entry)
            if runs and runs[-1][2] == found:
                start = runs.pop()[0]
            runs.append((start, stop, found))
        return runs


def _axes_of(param: Param) -> tuple[str, ...]:
    """Axes that cut a parameter, in the mesh's order."""
    cut = {axis for *_, axis in param.shards}
    return tuple(axis for axis in mesh.axes() if axis in cut)
