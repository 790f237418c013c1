"""The load that routers give their experts, and the loss that balances them by it.

A model with such a loss returns the load beside its logits, as `router_load`: the sum of what the
core below gives for each of its routers. A tracer that wants it whole finds the core by its
`semantic_op`, as those of attention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .norms import wide_dtype


class RouterLoad(nn.Module):
    """Choices and probabilities of a router, summed over the tokens of each row."""

    semantic_op = "router_load"

    def forward(self, logits: Tensor, top_k: int, factor: float) -> Tensor:
        """logits [B, S, E] -> [B, 2, E], in float32 at least.

        First the share of choices, 1 / top_k for each of a token's experts, which has no gradient;
        then the probabilities times `factor`.
        """
        probabilities = logits.to(wide_dtype(logits.dtype)).softmax(-1)
        chosen = probabilities.detach().topk(top_k).indices
        shares = torch.zeros_like(probabilities).scatter(-1, chosen, 1.0 / top_k)
        return torch.stack([shares.sum(1), factor * probabilities.sum(1)], dim=1)


def balance_loss(load: Tensor) -> Tensor:
    """Return the loss of the load of a whole batch, [B, 2, E] summed over its routers; 0-dim.

    The product of the mean share of choices and the mean probability, summed over experts: Fedus
    et al. 2021 (arXiv 2101.03961, equations 4 to 6), its factor being that of the load.
    """
    shares, probabilities = load.sum(0)
    return (shares.detach() * probabilities).sum() / shares.detach().sum() ** 2
