"""Rotary position embedding (Su et al. 2021), in the rotate-half layout of released checkpoints.

Note: the two halves of a head are the pairs, (x[i], x[i + D/2]), not neighbours. The tables repeat
the D/2 angles twice, so cos and sin are [S, D].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .config import DecoderConfig
from .norms import wide_dtype

Table = tuple[Tensor, Tensor]


class Rope(nn.Module):
    """Angles of every position; holds no parameter."""

    inv_freq: Tensor

    def __init__(self, config: DecoderConfig, *, local: bool) -> None:
        super().__init__()
        self._config = config
        self._local = local
        self.register_buffer("inv_freq", self._frequencies(None), persistent=False)

    def forward(self, seq: int, dtype: torch.dtype, device: torch.device) -> Table:
        """cos and sin of positions 0 .. seq - 1: two [S, D], rounded to dtype at the very end."""
        wide = wide_dtype(dtype)
        positions = torch.arange(seq, device=device, dtype=wide)
        half = positions.unsqueeze(1) * self.inv_freq.to(device=device, dtype=wide)
        angles = torch.cat((half, half), dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def _frequencies(self, device: torch.device | None) -> Tensor:
        config, size = self._config, self._config.head_size
        theta = config.rope_local_theta if self._local else config.rope_theta
        assert theta is not None
        exponent = torch.arange(0, size, 2, dtype=torch.float64, device=device) / size
        inv_freq = theta**-exponent
        return inv_freq if self._local else _scale(inv_freq, config)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Rope:
        # A move to bfloat16 would round the frequencies, a move out of meta would leave them
        # empty: make them anew on the new device instead.
        super()._apply(fn, recurse)
        self.inv_freq = self._frequencies(self.inv_freq.device)
        return self


def _scale(inv_freq: Tensor, config: DecoderConfig) -> Tensor:
    if config.rope_scaling == "linear":
        return inv_freq / config.rope_factor
    if config.rope_scaling == "llama3":
        return _scale_llama3(inv_freq, config)
    return inv_freq


def _scale_llama3(inv_freq: Tensor, config: DecoderConfig) -> Tensor:
    """Long wavelengths slowed by the factor, short ones kept, blended between (Llama 3.1)."""
    low, high = config.rope_low_freq_factor, config.rope_high_freq_factor
    turns = config.rope_original_seq * inv_freq / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return kept * inv_freq + (1 - kept) * inv_freq / config.rope_factor


def rotate(x: Tensor, table: Table) -> Tensor:
    """Rotate heads x [B, H, S, D] by their positions."""
    cos, sin = table
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
