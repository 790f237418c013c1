"""The feed-forward half of a block."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from .config import DecoderConfig
from .layers import Linear


class FeedForward(nn.Module):
    """down(act(gate(x)) * up(x)), or down(act(up(x))) without a gate."""

    def __init__(self, config: DecoderConfig, residual_std: float) -> None:
        super().__init__()
        self.activation = config.activation
        bias, std = config.bias == "all", config.init_std
        self.gate = Linear(config.dim, config.ffn, bias=bias, std=std) if config.gated else None
        self.up = Linear(config.dim, config.ffn, bias=bias, std=std)
        self.down = Linear(config.ffn, config.dim, bias=bias, std=residual_std)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, S, dim] -> [B, S, dim]."""
        if self.gate is None:
            return self.down(self._act(self.up(x)))
        return self.down(self._act(self.gate(x)) * self.up(x))

    def _act(self, x: Tensor) -> Tensor:
        return F.silu(x) if self.activation == "silu" else F.gelu(x, approximate="tanh")
