"""The load that a router gives its experts: ir/capture/router_load.py says what it is for."""

import torch
from torch import Tensor


def router_load(logits: Tensor, top_k: int, factor: float) -> Tensor:
    """Return of logits [B, S, E] the shares of choices and the probabilities times `factor`, both
    summed over S: [B, 2, E] in float32 at least."""
    probabilities = _probabilities(logits)
    chosen = probabilities.topk(top_k).indices
    shares = torch.zeros_like(probabilities).scatter(-1, chosen, 1.0 / top_k)
    return torch.stack([shares.sum(1), factor * probabilities.sum(1)], dim=1)


def router_load_backward(dy: Tensor, logits: Tensor, factor: float) -> Tensor:
    """Return the gradient of logits [B, S, E]; dy: of their load, [B, 2, E]."""
    probabilities, incoming = _probabilities(logits), factor * dy[:, 1:]
    mean = (probabilities * incoming).sum(-1, keepdim=True)
    return (probabilities * (incoming - mean)).to(logits.dtype)


def _probabilities(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
