"""Buffers that attention kernels write: q [B, H, S, D], k [B, K, T, D]."""

import torch
from torch import Tensor


def outputs(q: Tensor) -> tuple[Tensor, Tensor]:
    """Return empty (o, log-sum-exp); heads lie in o as in q."""
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    return empty_rows(q), lse


def empty_rows(x: Tensor) -> Tensor:
    """Return an empty tensor as x, the elements of a head beside each other."""
    return torch.empty_like(x) if x.stride(-1) == 1 else torch.empty_like(x.contiguous())
