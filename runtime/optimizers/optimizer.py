"""What all optimizers share: the norm of the whole model, clipping, and publication of weights.

The norm counts every logical element once: on the rank that owns it (`mesh.owns`), tied parameters
at their first home only.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..engine import mesh
from ..engine.buckets import FlatBucket
from ..engine.layout import Layout
from ..engine.weight_copy import WeightCopy
from .adafactor import Adafactor
from .adamw import AdamW
from .bad_step import BadStepError, NotFiniteError
from .lion import Lion
from .muon import Muon
from .options import OptimizerOptions
from .rounding import round_run
from .router_bias import with_router_biases
from .rule import Rule, Run, make_runs, narrowed, widened
from .schedule_free import ScheduleFree
from .sgd import SGD

RULES: dict[str, Callable[[OptimizerOptions, Layout], Rule]] = {
    "adamw": AdamW,
    "sgd": SGD,
    "lion": Lion,
    "schedule-free": ScheduleFree,
    "muon": Muon,
    "adafactor": Adafactor,
}

# What torch.nn.utils.clip_grad_norm_ adds to the norm.
CLIP_EPS = 1e-6

if TYPE_CHECKING:  # it needs Triton
    from .fused_adamw import FusedAdamW


class Optimizer:
    """One update rule over this rank's shards.

    buckets: the trained ones. weights: by bucket name what the rule updates: the shard itself, or
    its float32 master; of a frozen one the shard, which nothing updates. fused: the launches
    that update all buckets, for AdamW on GPUs; None for other rules.
    """

    def __init__(
        self, buckets: list[FlatBucket], layout: Layout, options: OptimizerOptions
    ) -> None:
        options.check_groups([p.name for p in layout.params])
        if options.rounding == "stochastic" and (layout.dtype != "bfloat16" or layout.master):
            wide = "float32 masters" if layout.master else layout.dtype
            raise ValueError(
                f"--rounding stochastic is for bfloat16 weights, this plan updates {wide}: plan "
                "with --dtype bf16 and the pin precision=pure"
            )
        self.buckets = [b for b in buckets if b.trainable]
        self.frozen = [b for b in buckets if not b.trainable]
        self.options = options
        self.rule = with_router_biases(RULES[options.name](options, layout), options, layout)
        self.uncounted = {p.name for p in layout.params if p.router_bias}  # in the norm
        self.weights = {b.bucket.name: _weights(b, layout.master) for b in buckets}
        self.runs = {
            b.bucket.name: make_runs(b, layout, self.rule, options, self.weights[b.bucket.name])
            for b in buckets
        }
        self.fused = self._fused() if self.rule.fuses else None
        self.updates = 0
        self.loss_limit = math.inf  # of the next step; a loss above it is a spike
        self.weight_copy = WeightCopy()

    def _fused(self) -> "FusedAdamW":
        from .fused_adamw import FusedAdamW

        return FusedAdamW([(b, self.runs_of(b)) for b in self.buckets], self.options)

    def step(self, loss: float, norm: float, lr: float) -> None:
        """Clip and update, or drop the step where it is bad.

        loss: of the global batch. norm: of the gradient before clipping. Raises BadStepError, on
        all ranks, for a bad step that is not to be skipped.
        """
        if not math.isfinite(loss + norm) or loss > self.loss_limit:
            self._refuse(loss, norm)
            return
        self._clip(norm)
        self.weight_copy.wait(mesh.device())
        self.updates += 1
        if self.fused is None:
            self._update(lr)
            self._copy()
        else:
            self.fused.update(lr, self.updates, self.rule.scale)
        self._gather()
        if self.fused is None or not self.fused.clears:
            self._clear()

    def _clip(self, norm: float) -> None:
        clip = self.options.clip
        self.rule.scale = min(1.0, clip / (norm + CLIP_EPS)) if clip else 1.0
        if self.rule.scale != 1.0 and not self.rule.scales:
            for bucket in self.buckets:
                bucket.grad_shard.mul_(self.rule.scale)

    def _update(self, lr: float) -> None:
        self.rule.begin_step(lr, self.updates)
        rounds = self.options.rounding == "stochastic"
        for buckets in self.rule.together(self.buckets):
            # Only these buckets are in float32 at a time.
            made = widened if rounds else narrowed
            given = [(bucket, tuple(map(made, self.runs_of(bucket)))) for bucket in buckets]
            self.rule.update_all(given, lr, self.updates)
            for bucket, updated in given if rounds else ():
                self._round(bucket, updated)

    def _round(self, bucket: FlatBucket, updated: Sequence[Run]) -> None:
        for run, wide in zip(self.runs_of(bucket), updated, strict=True):
            round_run(run, wide, self.rule.like_weights, self.options.seed, self.updates)

    def _refuse(self, loss: float, norm: float) -> None:
        """Drop a step that is not finite, or spikes; or raise BadStepError."""
        self._clear()
        if self.options.skip_bad:
            return
        finite, what = math.isfinite(loss + norm), "not finite"
        if finite:
            what = f"a spike, above {self.loss_limit:.4g}"
        raise (BadStepError if finite else NotFiniteError)(
            f"loss {loss}, gradient norm {norm}: {what}, nothing was updated; lower the rate, "
            "resume from a checkpoint, or pass --on-nan skip or rollback"
        )

    def _clear(self) -> None:
        for bucket in self.buckets:
            bucket.zero_grads()

    def publish(self) -> None:
        """Bring the weights that the rule updates to where forward and backward read them."""
        self._copy()
        self._gather()

    def _copy(self) -> None:
        for bucket in self.buckets:
            weights = self.weights[bucket.bucket.name]
            if weights is not bucket.shard:
                bucket.shard.copy_(weights)

    def _gather(self) -> None:
        for bucket in self.buckets:
            bucket.updated()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Forward reads the averaged weights meanwhile, where the rule keeps an average."""
        if not self.rule.averages:
            yield
            return
        self.weight_copy.wait(mesh.device())
        trained = [bucket.shard.clone() for bucket in self.buckets]
        for bucket in self.buckets:
            averages = [(run, self.rule.average(run)) for run in self.runs_of(bucket)]
            for run, average in averages:
                bucket.shard[run.start : run.stop].copy_(average)
            bucket.updated()
        yield
        for bucket, shard in zip(self.buckets, trained, strict=True):
            bucket.shard.copy_(shard)
            bucket.updated()

    # The checkpoint's side

    def runs_of(self, bucket: FlatBucket) -> tuple[Run, ...]:
        return self.runs[bucket.bucket.name]

    def all_runs(self) -> Iterator[Run]:
        for bucket in (*self.buckets, *self.frozen):
            yield from self.runs_of(bucket)

    def stored_kinds(self, run: Run) -> tuple[str, ...]:
        """Names of what `stored` gives; each is of the weights' shape and dtype."""
        if not run.trained:
            return ("param",)
        return ("param", *(("training",) if self.rule.averages else ()), *run.states)

    def stored(self, run: Run) -> dict[str, Tensor]:
        """Return what a checkpoint keeps of a run: "param", to evaluate and export, and what a
        resume needs; "training" are the weights where "param" is an average."""
        if not self.rule.averages or not run.trained:
            return {"param": run.weights, **run.states}
        return {"param": self.rule.average(run), "training": run.weights, **run.states}

    def loaded_into(self, run: Run) -> dict[str, Tensor]:
        """Return where the tensors of `stored` go on a resume; an average follows from others."""
        kind = "training" if self.rule.averages and run.trained else "param"
        return {kind: run.weights, **run.states}

    def started_over(self) -> None:
        """Set states that follow from weights, and publish, after new weights came."""
        self.start_states()
        self._publish_all()

    def start_states(self) -> None:
        """Set states as they are before the first update of the weights that are there."""
        for run in self.all_runs():
            if run.trained:
                self.rule.start(run)

    def _publish_all(self) -> None:
        """Publish frozen weights too, which change when others are loaded only."""
        self.publish()
        for bucket in self.frozen:
            bucket.updated()

    def resumed(self, updates: int, numbers: dict[str, float]) -> None:
        """Publish the weights and states that a checkpoint of `updates` updates brought.

        A skipped step is no update.
        """
        self.updates = updates
        self.rule.numbers.update(numbers)
        self._publish_all()

    def squares(self) -> Tensor:
        """Return the sum of squares of the gradient elements that this rank counts.

        float64, 0-dim; summed over all ranks it is the square of the norm.
        """
        own = [bucket for bucket in self.buckets if bucket.first_home]
        norms = [_norm(grad) for bucket in own for grad in self._counted_grads(bucket)]
        if not norms:
            return torch.zeros((), dtype=torch.float64, device=mesh.device())
        return torch.stack(norms).double().square().sum()

    def _counted_grads(self, bucket: FlatBucket) -> Iterator[Tensor]:
        """Give the gradients of the bucket's shard that this rank counts."""
        spans = bucket.runs(lambda e: (e.param in self.uncounted, bucket.differs_over(e.param)))
        for start, stop, (uncounted, over) in spans:
            if mesh.owns(over) and not uncounted:
                yield bucket.grad_shard[start:stop]


def _weights(bucket: FlatBucket, master: bool) -> Tensor:
    if not (master and bucket.trainable):
        return bucket.shard
    return bucket.shard.to(torch.promote_types(bucket.dtype, torch.float32))


def _norm(x: Tensor) -> Tensor:
    """In float64 for float64 gradients, else in float32 by a fused norm."""
    kind = torch.float64 if x.dtype is torch.float64 else torch.float32
    return torch.linalg.vector_norm(x, dtype=kind)
