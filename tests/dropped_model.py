"""A decoder with dropout wherever models have it: of elements, weights of attention, channels."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DIM, HEADS, FFN, VOCAB = 16, 4, 24, 32
# What a feed-forward drops beside its output.
PLACES = ("none", "flat", "turned", "channels", "shared", "weight")


class Attention(nn.Module):
    """kind 0: weights stay; 1: torch's own attention drops them; 2: they are dropped by hand."""

    def __init__(self, kind: int) -> None:
        super().__init__()
        self.kind = kind
        self.norm = nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.out = nn.Linear(DIM, DIM, bias=False)
        self.drop = nn.Dropout(0.2)

    def forward(self, h: Tensor) -> Tensor:
        parts = self.qkv(self.norm(h)).chunk(3, -1)
        q, k, v = (x.unflatten(-1, (HEADS, DIM // HEADS)).transpose(1, 2) for x in parts)
        if self.kind == 2:
            scores = q @ k.transpose(-2, -1) / 2
            unseen = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).triu(1)
            weights = scores.masked_fill(unseen, float("-inf")).softmax(-1)
            o = F.dropout(weights, 0.15, training=self.training) @ v
        else:
            p = 0.1 if self.training and self.kind == 1 else 0.0
            o = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return h + self.drop(self.out(o.transpose(1, 2).flatten(2)))


class FeedForward(nn.Module):
    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place
        self.norm = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, FFN)
        self.down = nn.Linear(FFN, DIM, bias=False)
        self.drop = nn.Dropout(0.25, inplace=place == "none")
        self.channels = nn.Dropout1d(0.3)

    def forward(self, h: Tensor) -> Tensor:
        y = self.drop(F.gelu(self.up(self.norm(h))))
        if self.place == "weight":
            return h + F.linear(y, F.dropout(self.down.weight, 0.1, self.training))
        y = self.down(y)
        if self.place == "flat":
            y = F.dropout(y.flatten(0, 1), 0.3, self.training).view_as(y)
        elif self.place == "turned":
            y = F.dropout(y.transpose(0, 1), 0.3, self.training).transpose(0, 1)
        elif self.place == "channels":
            y = self.channels(y.transpose(1, 2)).transpose(1, 2)
        elif self.place == "shared":
            y = y * F.dropout(torch.ones(h.shape[0], 1, DIM).to(y), 0.3, self.training)
        return h + y


class Dropped(nn.Module):
    """variant: which kinds of dropout it has; the first has none beside those of elements."""

    def __init__(self, variant: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=VOCAB)
        self.embed = nn.Embedding(VOCAB, DIM)
        self.drop = nn.Dropout(0.1)
        place = PLACES[variant % len(PLACES)]
        self.layers = nn.ModuleList(
            part
            for number in range(3)
            for part in (Attention(variant % 3), FeedForward(place if number else "none"))
        )
        self.norm = nn.LayerNorm(DIM)
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.drop(self.embed(tokens))
        for layer in self.layers:
            h = layer(h)
        return self.lm_head(self.norm(h))


def first() -> Dropped:
    """The first variant, for a spec `py:dropped_model:first`."""
    return Dropped(0)
