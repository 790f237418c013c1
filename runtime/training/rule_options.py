"""A run's options as the optimizer and the learning rate's schedule take them."""

from ..engine.layout import Layout
from ..optimizers.options import OptimizerOptions, parse_group
from .lr_schedule import learning_rate
from .options import RunOptions


def optimizer_options(o: RunOptions, layout: Layout) -> OptimizerOptions:
    """Return the optimizer's options; the layout's rule and rounding where none is asked for."""
    return OptimizerOptions(
        name=o.optimizer or layout.optimizer,
        beta1=o.beta1,
        beta2=o.beta2,
        eps=o.eps,
        weight_decay=o.weight_decay,
        momentum=o.momentum,
        nesterov=o.nesterov,
        muon_scale=o.muon_scale,
        rounding=o.rounding or layout.rounding,
        clip=o.clip,
        groups=tuple(map(parse_group, o.groups)),
        router_bias_rate=o.router_bias_rate,
        seed=o.seed,
        skip_bad=o.on_nan == "skip",
    )


def rate_of(step: int, o: RunOptions) -> float:
    """Return the learning rate of a step. Raises ValueError for options that do not fit."""
    return learning_rate(
        step,
        schedule=o.schedule,
        peak=o.lr,
        warmup=o.warmup,
        total=o.steps,
        floor=o.floor * o.lr,
    )
