"""Lion (Chen et al. 2023, arXiv 2302.06675, program 1): the sign of an interpolated momentum."""

from collections.abc import Sequence

import torch

from ..engine.buckets import FlatBucket
from ..engine.layout import Layout
from .options import OptimizerOptions
from .rule import Rule, Run


class Lion(Rule):
    """w -= lr (sign(beta1 m + (1 - beta1) g) + decay w), then m = beta2 m + (1 - beta2) g.

    The paper has beta2 0.99, and rates 3 to 10 times below AdamW's.
    """

    def __init__(self, options: OptimizerOptions, layout: Layout) -> None:
        self.options, self.numbers = options, {}

    def states(self, kind: str) -> tuple[str, ...]:
        return ("momentum",)

    def update(self, bucket: FlatBucket, runs: Sequence[Run], lr: float, count: int) -> None:
        o = self.options
        for run in runs:
            rate, momentum = lr * run.group.lr_scale, run.states["momentum"]
            direction = torch.lerp(momentum, run.grad, 1.0 - o.beta1).sign_()
            run.weights.mul_(1.0 - rate * run.decay).sub_(direction, alpha=rate)
            momentum.lerp_(run.grad, 1.0 - o.beta2)
