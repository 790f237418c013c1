"""Attention that holds every score: under a mask that is a tensor, or with dropout."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .attention import shares_beside
from .norms import wide_dtype


class DenseCore(nn.Module):
    """Attention under a mask that is a tensor or with dropout; every score is held."""

    def __init__(self, scale: float, softcap: float | None = None) -> None:
        super().__init__()
        self.scale = scale
        self.softcap = softcap

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        sinks: Tensor | None = None,
        bias: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """q [B, H, S, D], k and v [B, K, S, D] -> [B, H, S, D].

        mask: bool, of which False is not seen, or added to the scores; broadcast to [B, H, S, S].
        sinks [H] or [B, H, S, 1]: a score of each head, or query, that takes a share and gives no
        value. bias: added to the scores, broadcast to [B, H, S, S]. dropout: of the weights.
        Softmax in float32 or wider.
        """
        wide, groups = wide_dtype(q.dtype), q.shape[1] // k.shape[1]
        keys, values = (x.repeat_interleave(groups, dim=1) for x in (k, v))
        scores = (q @ keys.transpose(-2, -1)).to(wide) * self.scale
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if bias is not None:
            scores = scores + bias.to(wide)
        if mask is not None and mask.dtype is torch.bool:
            scores = scores.masked_fill(~mask, torch.finfo(q.dtype).min)
        elif mask is not None:
            scores = scores + mask.to(wide)
        shares = shares_beside(scores, sinks)
        return nn.functional.dropout(shares.to(q.dtype), dropout) @ values


def window_mask(seq: int, window: int | None, device: torch.device) -> Tensor:
    """Return which keys each query sees, bool [S, S]: the past, or the last `window` of it."""
    places = torch.arange(seq, device=device)
    distance = places.unsqueeze(1) - places.unsqueeze(0)
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def chosen_mask(mask: Tensor | None, indices: Tensor, keys: int) -> Tensor:
    """Return a mask without the keys that no index names. mask: of bools or added to scores,
    [B, 1, S, T] or [S, T]; indices, int [B, S, K] -> [B, 1, S, T]."""
    shape = (*indices.shape[:-1], keys)
    chosen = indices.new_zeros(shape, dtype=torch.bool).scatter(-1, indices.long(), True)
    chosen = chosen.unsqueeze(1)
    if mask is None or mask.dtype is torch.bool:
        return chosen if mask is None else mask & chosen
    return mask.masked_fill(~chosen, torch.finfo(mask.dtype).min)
