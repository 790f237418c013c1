"""SGD with momentum (Polyak 1964; Nesterov's form as in Sutskever et al. 2013) by torch.optim."""

from collections.abc import Sequence

from torch.optim.sgd import sgd

from ..engine.buckets import FlatBucket
from ..engine.layout import Layout
from .options import OptimizerOptions
from .rule import Rule, Run


class SGD(Rule):
    """Weight decay is added to the gradient, as torch.optim.SGD has it."""

    def __init__(self, options: OptimizerOptions, layout: Layout) -> None:
        self.options, self.numbers = options, {}

    def states(self, kind: str) -> tuple[str, ...]:
        return ("momentum",) if self.options.momentum else ()

    def update(self, bucket: FlatBucket, runs: Sequence[Run], lr: float, count: int) -> None:
        for run in runs:
            sgd(
                [run.weights],
                [run.grad],
                [run.states.get("momentum")],
                weight_decay=run.decay,
                momentum=self.options.momentum,
                lr=lr * run.group.lr_scale,
                dampening=0.0,
                nesterov=self.options.nesterov,
                maximize=False,
            )
