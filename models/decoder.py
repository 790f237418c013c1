"""Dense decoders: Llama, Mistral, Qwen2, Qwen3, Gemma 2 and 3, GPT-2, by one config."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from .attention import Attention
from .config import DecoderConfig
from .ffn import FeedForward
from .layers import Embedding, Linear
from .norms import make_norm
from .rope import Rope, Table


class Block(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x)); post_norms norm each branch's end too."""

    alike_once: ClassVar[bool] = True  # capture traces one of those that are alike

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        std = config.init_std
        if config.scaled_residual_init:
            std = std / math.sqrt(2 * config.layers)
        self.attention_norm = make_norm(config, config.dim)
        self.attention = Attention(config, layer, std)
        self.attention_post_norm = _post_norm(config)
        self.ffn_norm = make_norm(config, config.dim)
        self.ffn = FeedForward(config, std)
        self.ffn_post_norm = _post_norm(config)

    def forward(self, x: Tensor, table: Table | None) -> Tensor:
        """x [B, S, dim] -> [B, S, dim]."""
        x = x + self.attention_post_norm(self.attention(self.attention_norm(x), table))
        return x + self.ffn_post_norm(self.ffn(self.ffn_norm(x)))


def _post_norm(config: DecoderConfig) -> nn.Module:
    return make_norm(config, config.dim) if config.post_norms else nn.Identity()


class Decoder(nn.Module):
    """A causal language model.

    Parameters are made in the current default dtype and on the current default device, each by
    one in-place initialiser. The forward computes in the parameters' dtype; norms, softmax and
    rotary tables widen anything narrower than float32.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = Embedding(config.vocab, config.dim, std=config.init_std)
        self.position = _position_table(config)
        self.rope = Rope(config, local=False) if config.positions == "rope" else None
        self.local_rope = Rope(config, local=True) if self._has_local_rope() else None
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = make_norm(config, config.dim)
        self.lm_head = _head(config, self.embed)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens, int64 [B, S] -> logits [B, S, vocab] in the parameters' dtype."""
        x = self._embed(tokens)
        table, local_table = self._tables(tokens.shape[1], tokens.device)
        for index, block in enumerate(self.layers):
            x = block(x, local_table if self.config.is_local(index) else table)
        return self._cap(self.lm_head(self.norm(x)))

    def _has_local_rope(self) -> bool:
        return self.rope is not None and any(map(self.config.is_local, range(self.config.layers)))

    def _embed(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        if self.config.embed_scale != 1.0:
            x = x * self.config.embed_scale
        if self.position is not None:
            x = x + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        return x

    def _tables(self, seq: int, device: torch.device) -> tuple[Table | None, Table | None]:
        dtype = self.embed.weight.dtype
        table = None if self.rope is None else self.rope(seq, dtype, device)
        local_table = None if self.local_rope is None else self.local_rope(seq, dtype, device)
        return table, local_table

    def _cap(self, logits: Tensor) -> Tensor:
        cap = self.config.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)


def _position_table(config: DecoderConfig) -> Embedding | None:
    if config.positions != "learned":
        return None
    assert config.max_seq is not None
    return Embedding(config.max_seq, config.dim, std=config.init_std)


def _head(config: DecoderConfig, embed: Embedding) -> Linear:
    if not config.tied:
        return Linear(config.dim, config.vocab, bias=False, std=config.init_std)
    head = Linear(config.dim, config.vocab, bias=False, std=config.init_std, device="meta")
    head.weight = embed.weight
    return head
