"""AdamW (Loshchilov & Hutter 2019) by torch.optim's fused step."""

from collections.abc import Sequence
from itertools import groupby

import torch
from torch.optim.adamw import adamw

from ..buckets import FlatBucket
from ..layout import Layout
from .options import OptimizerOptions
from .rule import Rule, Run


class AdamW(Rule):
    def __init__(self, options: OptimizerOptions, layout: Layout) -> None:
        self.options, self.numbers = options, {}

    def states(self, kind: str) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def update(self, bucket: FlatBucket, runs: Sequence[Run], lr: float, count: int) -> None:
        o = self.options
        for group, members in groupby(runs, key=lambda run: run.group):
            alike = list(members)
            # The fused step counts up before it corrects the moments' bias.
            before = [torch.full((), count - 1.0, device=run.weights.device) for run in alike]
            adamw(
                [run.weights for run in alike],
                [run.grad for run in alike],
                [run.states["exp_avg"] for run in alike],
                [run.states["exp_avg_sq"] for run in alike],
                [],
                before,
                fused=True,
                amsgrad=False,
                beta1=o.beta1,
                beta2=o.beta2,
                lr=lr * group.lr_scale,
                weight_decay=group.weight_decay or 0.0,
                eps=o.eps,
                maximize=False,
            )
