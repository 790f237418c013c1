"""Attention: the projections, and the core kept as a module of its own.

A tracer that wants attention whole finds the cores by their `semantic_op` and replaces `forward`;
nothing else in a model needs to know.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .config import DecoderConfig
from .layers import Linear
from .norms import make_norm, wide_dtype
from .rope import Table, rotate


class AttentionCore(nn.Module):
    """softmax(scale * q @ k^T) @ v under a causal mask, with grouped keys and values, and sinks.

    scale: factor on q @ k^T. causal: else every query sees all keys.
    window: query i sees keys j with i - window < j <= i; None: every j <= i.
    softcap: scores become softcap * tanh(scores / softcap), before the mask; None: as they are.
    """

    semantic_op = "attention"

    def __init__(
        self,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.scale, self.causal = scale, causal
        self.window = window
        self.softcap = softcap

    def forward(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        """q [B, H, S, D], k and v [B, K, S, D] with K dividing H -> [B, H, S, D] in q's dtype.

        sinks [H] or [B, H, S, 1]: a score of each head, or query, that takes a share and gives no
        value. This body is the reference: plain, quadratic in S, in float32 or wider.
        """
        wide, groups = wide_dtype(q.dtype), q.shape[1] // k.shape[1]
        keys = k.to(wide).repeat_interleave(groups, dim=1)
        values = v.to(wide).repeat_interleave(groups, dim=1)
        scores = q.to(wide) @ keys.transpose(-2, -1) * self.scale
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.causal:
            hidden = ~self._visible(q.shape[2], q.device)
            scores = scores.masked_fill(hidden, float("-inf"))
        return (shares_beside(scores, sinks) @ values).to(q.dtype)

    def _visible(self, seq: int, device: torch.device) -> Tensor:
        position = torch.arange(seq, device=device)
        distance = position.unsqueeze(1) - position.unsqueeze(0)
        visible = distance >= 0
        return visible if self.window is None else visible & (distance < self.window)

    def extra_repr(self) -> str:
        kind = "" if self.causal else ", all keys"
        return f"scale={self.scale:g}, window={self.window}, softcap={self.softcap}{kind}"


def shares_beside(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Return the softmax of scores [B, H, S, T] over the keys, beside sinks [H] or [B, H, S, 1]."""
    if sinks is None:
        return scores.softmax(-1)
    of_queries = sinks if sinks.dim() == scores.dim() else sinks.reshape(1, -1, 1, 1)
    column = of_queries.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]


class Attention(nn.Module):
    """Project to heads, rotate, attend, project back."""

    def __init__(self, config: DecoderConfig, layer: int, residual_std: float) -> None:
        super().__init__()
        self.head_size = config.head_size
        width, key_width = config.heads * self.head_size, config.key_heads * self.head_size
        bias, std = config.bias != "none", config.init_std
        self.q = Linear(config.dim, width, bias=bias, std=std)
        self.k = Linear(config.dim, key_width, bias=bias, std=std)
        self.v = Linear(config.dim, key_width, bias=bias, std=std)
        self.o = Linear(width, config.dim, bias=config.bias == "all", std=residual_std)
        self.q_norm = make_norm(config, self.head_size) if config.qk_norm else None
        self.k_norm = make_norm(config, self.head_size) if config.qk_norm else None
        self.core = AttentionCore(
            config.score_scale, config.window_of(layer), config.attention_softcap
        )

    def forward(self, x: Tensor, table: Table | None) -> Tensor:
        """x [B, S, dim] -> [B, S, dim]; table: RoPE's cos and sin, None with learned positions."""
        q, k, v = self._heads(self.q(x)), self._heads(self.k(x)), self._heads(self.v(x))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if table is not None:
            q, k = rotate(q, table), rotate(k, table)
        return self.o(self.core(q, k, v).transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        batch, seq, width = x.shape
        return x.view(batch, seq, width // self.head_size, self.head_size).transpose(1, 2)
