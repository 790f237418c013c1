"""Biases of routers, which the load of their experts moves, beside the rule of all other weights.

    bias -= rate * sign(excess)

The excess, E times the choices of an expert less all choices, comes as the gradient; Wang et al.
2024 (arXiv 2408.15664, algorithm 1) and DeepSeek-V3 (arXiv 2412.19437, 2.1.2). The rate does not
follow the learning rate's schedule.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..engine.buckets import FlatBucket
from ..engine.layout import Layout, Param
from .options import ROUTER_BIAS_RATE, OptimizerOptions
from .rule import Rule, Run, Updated

KIND = "router bias"


class WithRouterBiases(Rule):
    """A rule for all but the biases of routers. rule: of the others."""

    def __init__(self, rule: Rule, rate: float) -> None:
        self.rule, self.rate = rule, rate
        self.numbers, self.scales = rule.numbers, rule.scales
        self.like_weights, self.averages = rule.like_weights, rule.averages

    def kind(self, param: Param) -> str:
        return KIND if param.router_bias else self.rule.kind(param)

    def states(self, kind: str) -> tuple[str, ...]:
        return () if kind == KIND else self.rule.states(kind)

    def start(self, run: Run) -> None:
        if run.kind != KIND:
            self.rule.start(run)

    def begin_step(self, lr: float, count: int) -> None:
        self.rule.scale = self.scale
        self.rule.begin_step(lr, count)

    def together(self, buckets: Sequence[FlatBucket]) -> list[list[FlatBucket]]:
        return self.rule.together(buckets)

    def update_all(self, given: Sequence[Updated], lr: float, count: int) -> None:
        others = [(bucket, [run for run in runs if run.kind != KIND]) for bucket, runs in given]
        self.rule.update_all(others, lr, count)
        for run in (run for _, runs in given for run in runs if run.kind == KIND):
            run.weights.sub_(torch.sign(run.grad), alpha=self.rate)

    def average(self, run: Run) -> Tensor:
        return run.weights if run.kind == KIND else self.rule.average(run)

    def whole_states(self, bucket: FlatBucket) -> dict[tuple[str, str], Tensor]:
        return self.rule.whole_states(bucket)


def with_router_biases(rule: Rule, options: OptimizerOptions, layout: Layout) -> Rule:
    """Return a rule that updates the layout's biases of routers too, where it has some.

    Raises ValueError for a rate that was asked for, and has no bias to move.
    """
    if any(param.router_bias for param in layout.params):
        return WithRouterBiases(rule, options.router_bias_rate)
    if options.router_bias_rate not in (0.0, ROUTER_BIAS_RATE):
        raise ValueError(
            f"--router-bias-rate {options.router_bias_rate:g}: the program updates 0 biases of "
            "routers; plan with --update-router-bias, or leave --router-bias-rate out"
        )
    return rule
