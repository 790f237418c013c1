"""Modules of a list of blocks, alike or not, that a shorter list may stand for."""

from functools import partial

import torch
from torch import Tensor, nn

from meshwright.ir.capture.export import trace
from meshwright.ir.traced import Traced
from meshwright.models.source import ModelSource

VOCAB, WIDTH, DEPTH = 17, 8, 6


class Block(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale, self.inner = scale, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * torch.tanh(self.inner(x))


class Stack(nn.Module):
    """kind: alike; scaled, each block with a number of its own; alternating, two numbers in turn;
    shared, the last block is the first."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        scales = {
            "scaled": [1.0 / (n + 1) for n in range(DEPTH)],
            "alternating": [0.5, 0.25] * (DEPTH // 2),
        }.get(kind, [0.5] * DEPTH)
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(map(Block, scales))
        if kind == "shared":
            self.blocks[-1] = self.blocks[0]
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def source_of(kind: str) -> ModelSource:
    return ModelSource(f"py:own:{kind}", VOCAB, None, partial(Stack, kind))


def traced(source: ModelSource) -> Traced:
    return trace(source.build, source.name, "f32", VOCAB)
