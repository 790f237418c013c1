"""A model of ops that nobody registered: lists of tensors, several outputs, an op of its own."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.library import custom_op

DIM, VOCAB = 8, 32


@custom_op("oddlib::cube", mutates_args=())
def cube(x: Tensor, scale: float) -> Tensor:
    return x * x * x * scale


@cube.register_fake
def _(x: Tensor, scale: float) -> Tensor:
    return torch.empty_like(x)


@custom_op("oddlib::cube_grad", mutates_args=())
def cube_grad(dy: Tensor, x: Tensor, scale: float) -> Tensor:
    return 3 * x * x * scale * dy


@cube_grad.register_fake
def _(dy: Tensor, x: Tensor, scale: float) -> Tensor:
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, ctx.scale = inputs
    ctx.save_for_backward(x)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
    (x,) = ctx.saved_tensors
    return cube_grad(dy, x, ctx.scale), None


cube.register_autograd(_backward, setup_context=_setup)


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.fc = nn.Linear(DIM, DIM, bias=False)
        self.up = nn.Linear(DIM, DIM, bias=False)
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        a = self.fc(h)
        stacked = torch.stack([h, a, h * a], dim=2)
        h = h + stacked.flip(2).prod(dim=2)
        h = h + torch.cat([h, torch.cumsum(a, dim=1)], dim=-1)[..., 4:12]
        values, places = torch.topk(self.up(h), 3, dim=-1)
        h = h + torch.zeros_like(h).scatter_add(-1, places, values)
        first = torch.zeros(1, dtype=torch.int64)
        order = torch.tensor([1, 0, 3, 2, 5, 4, 7, 6])
        h = torch.ops.aten.index_put(h, [None, first], a[:, :1]) + h[:, :, order]
        return self.lm_head(h + cube(a, 0.5))


class InPlace(Odd):
    """Writes into a buffer: a program keeps no state of the model between steps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        self.seen += 1.0
        return self.lm_head(h + self.fc(h) * self.seen)


def build() -> Odd:
    return Odd()


def build_in_place() -> InPlace:
    return InPlace()
