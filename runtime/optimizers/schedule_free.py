"""Schedule-Free AdamW (Defazio et al. 2024, arXiv 2405.15682, algorithm 1).

Note. Three sequences look alike: z takes the gradient steps, x is the average of z that is
evaluated and exported, and y = (1 - beta1) z + beta1 x is where gradients are taken. The weights
hold y and one state holds z; x is made from them when it is wanted.

With rate g_t = lr sqrt(1 - beta2^t), v_t AdamW's second moment and c_t = g_t^2 / sum of g_i^2:

    z' = z - g_t (grad / (sqrt(v_t) + eps) + decay y)
    x' = (1 - c_t) x + c_t z'
    y' = (1 - beta1) z' + beta1 x'

Use it with the schedules none or constant: the average takes the place of a decay.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from ..engine.buckets import FlatBucket
from ..engine.layout import Layout
from .options import OptimizerOptions
from .rule import Rule, Run


class ScheduleFree(Rule):
    """numbers: the sum of squared rates, over all updates so far. Raises ValueError for beta1 0."""

    like_weights = ("z",)
    averages = True

    def __init__(self, options: OptimizerOptions, layout: Layout) -> None:
        if not 0.0 < options.beta1 < 1.0:
            raise ValueError(
                f"--beta1 {options.beta1}: schedule-free averages with 0 < beta1 < 1; give 0.9"
            )
        self.options, self.numbers = options, {"rate_squares": 0.0}

    def states(self, kind: str) -> tuple[str, ...]:
        return ("z", "exp_avg_sq")

    def start(self, run: Run) -> None:
        run.states["z"].copy_(run.weights)

    def begin_step(self, lr: float, count: int) -> None:
        self.rate = lr * math.sqrt(1.0 - self.options.beta2**count)
        self.numbers["rate_squares"] += self.rate**2
        squares = self.numbers["rate_squares"]
        self.share = self.rate**2 / squares if squares else 0.0

    def update(self, bucket: FlatBucket, runs: Sequence[Run], lr: float, count: int) -> None:
        o, share = self.options, self.share
        for run in runs:
            y, z, second = run.weights, run.states["z"], run.states["exp_avg_sq"]
            second.mul_(o.beta2).addcmul_(run.grad, run.grad, value=1.0 - o.beta2)
            step = run.grad / second.sqrt().add_(o.eps)
            step.add_(y, alpha=run.decay)
            y.sub_(z, alpha=1.0 - o.beta1).mul_(1.0 - share)  # beta1 (1 - c) x
            z.sub_(step, alpha=self.rate * run.group.lr_scale)
            y.add_(z, alpha=1.0 - o.beta1 * (1.0 - share))

    def average(self, run: Run) -> Tensor:
        # x = y + (y - z) (1 - beta1) / beta1
        return run.weights.lerp(run.states["z"], 1.0 - 1.0 / self.options.beta1)
