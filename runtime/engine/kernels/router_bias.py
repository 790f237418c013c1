"""The load that moves a router's bias: ir/capture/router_bias.py says what it is for."""

import torch
from torch import Tensor


def biased_choice(values: Tensor, ids: Tensor, bias: Tensor) -> Tensor:
    """Return values that are made of what a bias chose, as they are."""
    return values


def biased_choice_backward(ids: Tensor, num_experts: int, double: bool) -> Tensor:
    """Return by how much each expert was chosen more than the mean, times the number of experts.

    ids: int64, of any shape. Returns [E], float32 or float64, integers: E times the choices of an
    expert, less all choices. A sum over parts of a batch is that of the batch, exactly up to 2^24
    in float32.
    """
    flat = ids.reshape(-1, 1)
    chosen = (flat == torch.arange(num_experts, device=ids.device)).sum(0)
    return (num_experts * chosen - flat.shape[0]).to(torch.float64 if double else torch.float32)
