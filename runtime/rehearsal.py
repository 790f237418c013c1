"""All of a rank's functions once, before ranks of a pipeline wait for each other.

Note. The first call of a function compiles, times variants and loads kernels, each of which may
wait for the whole device: for transfers too that are under way there and wait for another rank. Two
ranks of which each does so while it holds what the other waits for never go on; with transfers in
both directions (a V) nothing keeps them from it. Compiled side by side, and not each stage once the
one before has sent, the stages are also ready sooner.
"""

import torch

from . import mesh
from .buckets import FlatBucket
from .stage import Stage


def rehearse(
    stages: dict[int, Stage], last: int, split: bool, buckets: dict[str, FlatBucket]
) -> None:
    """Forward and backward of each stage on its first micro-batch, on zeros where another stage's
    values come in; gradients are cleared after it. The step must have begun, and begins anew.

    last: number of the last stage. split: backward runs in two parts.
    """
    for number, stage in stages.items():
        stage.module.forward(stage, 0, _zeros(stage.module.ENTRY) if number else None)
        grad = _zeros(stage.module.EXIT) if number < last else None
        if split:
            stage.module.input_grad(stage, 0, grad)
            stage.module.weight_grad(stage, 0)
        else:
            stage.module.backward(stage, 0, grad)
    for bucket in buckets.values():
        bucket.finish_reductions()
        bucket.zero_grads()


def _zeros(like: tuple[tuple[int, ...], torch.dtype]) -> torch.Tensor:
    shape, dtype = like
    return torch.zeros(shape, dtype=dtype, device=mesh.device())
