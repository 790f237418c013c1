"""AdamW over bucket shards, and the gradient norm of the whole model.

The norm counts every logical element once: tp-replicated parameters on tp rank 0 only,
dp-replicated shards on dp rank 0 only, tied parameters at their first home only.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from . import mesh
from .buckets import FlatBucket


@dataclass(frozen=True)
class AdamWOptions:
    """beta1, beta2, eps, weight decay (matrices only), and the global-norm clip (0: none).

    skip_nonfinite: leave weights and moments as they are where the loss or norm is not finite;
    else raise NotFiniteError. All ranks decide alike, as both numbers are the whole model's.
    """

    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0
    skip_nonfinite: bool = False


class NotFiniteError(ValueError):
    """A loss or gradient norm that is not a number; nothing was updated."""


class _Moments:
    """AdamW's moments of a bucket's shard, and its runs as (parameter, decays, state).

    weights: what AdamW updates: the shard itself, or its float32 master.
    """

    def __init__(self, bucket: FlatBucket) -> None:
        master = bucket.grad_dtype is not bucket.dtype
        self.weights = bucket.shard.to(bucket.grad_dtype) if master else bucket.shard
        self.first = torch.zeros_like(self.weights)
        self.second = torch.zeros_like(self.weights)
        self.runs = []
        for start, stop, decay, _ in bucket.runs():
            param = self.weights[start:stop].detach()
            param.grad = bucket.grad_shard[start:stop]
            state = {"exp_avg": self.first[start:stop], "exp_avg_sq": self.second[start:stop]}
            self.runs.append((param, decay, state))


class Optimizer:
    """AdamW (Loshchilov & Hutter 2019) by torch.optim, on flat runs of equal weight decay."""

    def __init__(self, buckets: list[FlatBucket], options: AdamWOptions) -> None:
        self.buckets, self.options = buckets, options
        self.moments = {b.bucket.name: _Moments(b) for b in buckets}
        runs = [run for b in buckets for run in self.moments[b.bucket.name].runs]
        decayed = [param for param, decay, _ in runs if decay]
        plain = [param for param, decay, _ in runs if not decay]
        groups = [
            {"params": decayed, "weight_decay": options.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ]
        groups = [g for g in groups if g["params"]]
        betas = (options.beta1, options.beta2)
        self.adamw = (
            torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=options.eps, fused=True)
            if groups
            else None
        )
        self.set_updates(0)
        # Called before anything changes: a copy of the weights under way is waited for.
        self.before_update: Callable[[], None] | None = None
        # A signal on any rank asks for a stop; all ranks learn of it in the same step.
        self.stop_wanted = self.stop_agreed = False

    def set_updates(self, updates: int) -> None:
        """Moments as they stand, after so many updates; a skipped step is none."""
        self.updates = updates
        if self.adamw is None:
            return
        for moments in self.moments.values():
            for param, _, state in moments.runs:
                count = torch.full((), float(updates), dtype=torch.float32, device=param.device)
                self.adamw.state[param] = {"step": count, **state}

    def tensors(self, bucket: FlatBucket) -> dict[str, Tensor]:
        """This rank's shard of a bucket: weights that AdamW updates and both moments, flat."""
        moments = self.moments[bucket.bucket.name]
        return {"param": moments.weights, "exp_avg": moments.first, "exp_avg_sq": moments.second}

    def step(self, loss: Tensor, lr: float) -> tuple[float, float]:
        """Clip and update; returns (loss of the global batch, gradient norm before clipping).

        loss: this rank's share, already divided by the global label count; float64 scalar.
        """
        stop = torch.full((), float(self.stop_wanted), dtype=torch.float64, device=loss.device)
        totals = torch.stack([loss.double(), self._squares(), stop])
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(totals)
        loss_value, squares, stops = totals.tolist()
        self.stop_agreed = stops > 0
        norm = squares**0.5
        if not math.isfinite(loss_value + norm):
            return self._refuse(loss_value, norm)
        clip = self.options.clip
        if clip and norm > clip:
            for bucket in self.buckets:
                bucket.grad_shard.mul_(clip / norm)
        if self.before_update is not None:
            self.before_update()
        if self.adamw is not None:
            for group in self.adamw.param_groups:
                group["lr"] = lr
            self.adamw.step()
        self.updates += 1
        self.publish()
        for bucket in self.buckets:
            bucket.zero_grads()
        return loss_value, norm

    def _refuse(self, loss: float, norm: float) -> tuple[float, float]:
        """A step that is not finite: dropped, or the end of the run."""
        for bucket in self.buckets:
            bucket.zero_grads()
        if not self.options.skip_nonfinite:
            raise NotFiniteError(
                f"loss {loss}, gradient norm {norm}: not finite, nothing was updated; lower the "
                "rate, resume from a checkpoint, or pass --on-nan skip"
            )
        return loss, norm

    def publish(self) -> None:
        """Bring the weights that AdamW updates to where forward and backward read them."""
        for bucket in self.buckets:
            weights = self.moments[bucket.bucket.name].weights
            if weights is not bucket.shard:
                bucket.shard.copy_(weights)
            bucket.updated()

    def _squares(self) -> Tensor:
        """Sum of squares of the gradient elements that this rank counts; float64 scalar."""
        device = mesh.device()
        total = torch.zeros((), dtype=torch.float64, device=device)
        for bucket in self.buckets:
            if bucket.bucket.homes[0] != mesh.coordinate("pp"):
                continue
            if bucket.cuts == 1 and mesh.coordinate("dp") != 0:
                continue
            for start, stop, _, replicated in bucket.runs():
                if replicated and mesh.coordinate("tp") != 0:
                    continue
                total += _square_sum(bucket.grad_shard[start:stop])
        return total


def _square_sum(x: Tensor) -> Tensor:
    """In float64 for float64 gradients, else in float32 by a fused norm."""
    kind = torch.float64 if x.dtype is torch.float64 else torch.float32
    return torch.linalg.vector_norm(x, dtype=kind).double() ** 2
