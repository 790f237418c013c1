"""How a router loads its experts, as a semantic op: what a loss that balances them is made of.

Of router logits [B, S, E] the load [B, 2, E] holds by row and expert the share of choices (each
token gives 1 / top_k to each of its experts) and the probabilities, times a factor; both summed
over the tokens. Loads of several layers are added up. With f and p their sums over all rows of a
batch, the loss of Fedus et al. 2021 (arXiv 2101.03961, equations 4 to 6) is

    sum_e f_e p_e / (sum_e f_e)^2

since sum_e f_e counts the tokens of all layers. The shares have no gradient.
"""

from typing import Any

from torch import Tensor
from torch.library import custom_op

from .semantic import Grads, no_kernel, statistics_dtype


@custom_op("meshwright::router_load", mutates_args=())
def router_load(logits: Tensor, top_k: int, factor: float) -> Tensor:
    """logits [B, S, E] -> [B, 2, E], in float32 at least."""
    raise no_kernel("router_load")


@router_load.register_fake
def _(logits: Tensor, top_k: int, factor: float) -> Tensor:
    shape = (logits.shape[0], 2, logits.shape[2])
    return logits.new_empty(shape, dtype=statistics_dtype(logits.dtype))


@custom_op("meshwright::router_load_backward", mutates_args=())
def router_load_backward(dy: Tensor, logits: Tensor, factor: float) -> Tensor:
    """dy [B, 2, E], logits [B, S, E] -> their gradient."""
    raise no_kernel("router_load_backward")


@router_load_backward.register_fake
def _(dy: Tensor, logits: Tensor, factor: float) -> Tensor:
    return logits.new_empty(logits.shape)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    logits, _, ctx.factor = inputs
    ctx.save_for_backward(logits)


def _backward(ctx: Any, dy: Tensor) -> Grads:
    return router_load_backward(dy, *ctx.saved_tensors, ctx.factor), None, None


router_load.register_autograd(_backward, setup_context=_setup)
