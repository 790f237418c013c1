"""Norms over the last dim, spelled out in elementwise ops and one mean.

Statistics are taken in at least float32: bfloat16 is widened, float32 and float64 stay.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .config import DecoderConfig


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype itself, or float32 where that is wider."""
    # torch.promote_types would leave a node of its own in a traced graph.
    return torch.float32 if dtype.itemsize < 4 else dtype


def _normalise(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


class RMSNorm(nn.Module):
    """x / rms(x) * w (Zhang and Sennrich 2019); w starts at one."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(wide_dtype(x.dtype))
        return self.weight * _normalise(wide, self.eps).to(x.dtype)


class RMSNormPlusOne(nn.Module):
    """x / rms(x) * (1 + w), as Gemma has it: w starts at zero, and the scale is applied wide."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(wide_dtype(x.dtype))
        scale = 1.0 + self.weight.to(wide.dtype)
        return (_normalise(wide, self.eps) * scale).to(x.dtype)


class LayerNorm(nn.Module):
    """(x - mean) / deviation * w + b (Ba et al. 2016)."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))
        self.bias = nn.Parameter(torch.empty(dim))
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(wide_dtype(x.dtype))
        centred = wide - wide.mean(-1, keepdim=True)
        return _normalise(centred, self.eps).to(x.dtype) * self.weight + self.bias


_KINDS = {"rms": RMSNorm, "rms_plus_one": RMSNormPlusOne, "layer": LayerNorm}


def make_norm(config: DecoderConfig, dim: int) -> nn.Module:
    """The config's kind of norm over a last dim of this size."""
    return _KINDS[config.norm](dim, config.norm_eps)
