"""A grammar of modules: what people write between an embedding and a head.

A drawn module is an embedding, one to three blocks, and a head. A block is a body in a frame
(residual, parallel, gated, normed before or after, shared several times). WEIGHTS say how often a
body is drawn; EDGES are those of which some must be refused.
"""

import random
from collections.abc import Callable
from functools import partial

import torch
from equivalence.bodies import (
    DIM,
    HEADS,
    VOCAB,
    Biased,
    Body,
    Checkpointed,
    Constants,
    Dropped,
    Experts,
    Halves,
    Hidden,
    InPlace,
    Looped,
    Memory,
    Padded,
    Rows,
    Scan,
    Stateful,
    Streams,
)
from torch import Tensor, nn
from torch.nn import functional as F

from meshwright.models.router_load import RouterLoad

Make = Callable[[random.Random], nn.Module]


class Mlp(Body):
    def parts(self):
        self.up = nn.Linear(DIM, 20, bias=self.kind % 2 == 0)
        self.down = nn.Linear(20, DIM, bias=False)

    def forward(self, h):
        act = (F.gelu, F.silu, F.relu, partial(F.elu, alpha=0.7))[self.kind]
        return self.down(act(self.up(h)))


class Gated(Body):
    def parts(self):
        self.both = nn.Linear(DIM, 16, bias=False)
        self.out = nn.Linear(8, DIM, bias=False)

    def forward(self, h):
        if self.kind % 2:
            a, b = self.both(h).chunk(2, dim=-1)
        else:
            a, b = self.both(h).split([8, 8], dim=-1)
        return self.out((F.silu(a), torch.sigmoid(a), a.tanh(), F.softplus(a))[self.kind] * b)


class Attention(Body):
    def parts(self):
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=self.kind == 1)
        self.out = nn.Linear(DIM, DIM, bias=False)

    def forward(self, h):
        q, k, v = (x.unflatten(-1, (HEADS, 4)).transpose(1, 2) for x in self.qkv(h).chunk(3, -1))
        o = self.attend(q, k, v)
        return self.out(o.transpose(1, 2).flatten(2))

    def attend(self, q, k, v):
        causal = self.kind != 3
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=self.scale)


class MaskedAttention(Attention):
    def attend(self, q, k, v):
        s = q.shape[-2]
        places = torch.arange(s)
        near = places[None, :] <= places[:, None]
        if self.kind == 0:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=near)
        if self.kind == 1:
            bias = -(places[:, None] - places[None, :]).abs().to(q.dtype) * 0.2
            bias = bias.masked_fill(~near, float("-inf"))
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        if self.kind == 2:
            window = near & (places[:, None] - places[None, :] < 3)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=window[None, None])
        flat = [x.flatten(0, 1) for x in (q, k, v)]
        return F.scaled_dot_product_attention(*flat, is_causal=True).view_as(q)


class HandAttention(Attention):
    def attend(self, q, k, v):
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        s = q.shape[-2]
        mask = torch.full((s, s), float("-inf")).triu(1).to(q.dtype)
        if self.kind % 2:
            scores = scores.masked_fill(~torch.ones(s, s, dtype=torch.bool).tril(), -1e4)
        else:
            scores = scores + mask
        return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v)


class Convolution(Body):
    def parts(self):
        groups = (DIM, 1, 3, DIM)[self.kind]
        self.conv = nn.Conv1d(DIM, DIM, 3, padding=2, groups=groups, bias=self.kind != 2)

    def forward(self, h):
        return self.conv(h.transpose(1, 2))[..., : h.shape[1]].transpose(1, 2)


class Decay(Body):
    """A recurrence written as a cumulative sum."""

    def parts(self):
        self.proj = nn.Linear(DIM, 2 * DIM, bias=False)

    def forward(self, h):
        x, g = self.proj(h).chunk(2, -1)
        if self.kind < 2:
            steps = torch.arange(1, h.shape[1] + 1).to(h.dtype)
            return torch.cumsum(x, 1) / steps[:, None]
        rate = F.logsigmoid(g).cumsum(1)
        return torch.exp(rate - rate.detach().amax(1, keepdim=True)) * x


class Recurrent(Body):
    """Steps over features, one after the other, with a state."""

    def forward(self, h):
        x, state, outs = self.proj(h), h[..., :3] * 0, []
        for part in x.split(3, dim=-1):
            state = torch.tanh(state * 0.5 + part)
            outs.append(state)
        return torch.cat(outs, -1)


class Routed(Body):
    def parts(self):
        self.router = nn.Linear(DIM, 4, bias=self.kind == 0)
        self.experts = nn.ModuleList(nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def forward(self, h):
        logits = self.router(h)
        wide = torch.float32 if self.kind == 1 else h.dtype
        weights, chosen = torch.topk(logits.softmax(-1, dtype=wide), 2, dim=-1)
        if self.kind == 2:
            weights = weights / weights.sum(-1, keepdim=True)
        weights = weights.to(h.dtype)
        if self.kind == 3:
            mask = torch.zeros_like(logits).scatter(-1, chosen, weights)
            return sum(mask[..., e, None] * f(h) for e, f in enumerate(self.experts))
        outs = torch.stack([f(h) for f in self.experts], dim=-2)
        picked = outs.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, DIM))
        return (picked * weights.unsqueeze(-1)).sum(-2)


class Normed(Body):
    def parts(self):
        norms = (nn.LayerNorm(DIM), nn.RMSNorm(DIM), nn.GroupNorm(3, DIM), nn.RMSNorm(DIM, 1e-3))
        self.norm, self.proj = norms[self.kind], nn.Linear(DIM, DIM)

    def forward(self, h):
        if self.kind == 2:
            return self.proj(self.norm(h.flatten(0, 1)).view_as(h))
        return self.proj(self.norm(h))


class HandNormed(Body):
    def forward(self, h):
        y = self.proj(h)
        if self.kind == 0:
            return (y - y.mean(-1, keepdim=True)) / (y.var(-1, keepdim=True) + 1e-2).sqrt()
        if self.kind == 1:
            return y / (y.norm(dim=-1, keepdim=True) + 0.1)
        if self.kind == 2:
            return F.normalize(y, dim=-1, eps=1e-3) * self.scale
        return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-3)


class Scalars(Body):
    def parts(self):
        self.proj = nn.Linear(DIM, DIM, bias=False)
        self.gain = nn.Parameter(torch.tensor(0.7))
        self.shift = nn.Parameter(torch.full((1,), 0.2))
        self.per = nn.Parameter(1e-1 * torch.ones(DIM))

    def forward(self, h):
        y = self.proj(h) * self.per
        return (y * self.gain + self.shift, y - self.gain, self.gain * y / 2, y * self.shift.exp())[
            self.kind
        ]


class Buffers(Body):
    def parts(self):
        self.proj = nn.Linear(DIM, DIM, bias=False)
        self.register_buffer("table", torch.linspace(0, 1, 64 * DIM).view(64, DIM))
        self.register_buffer("order", torch.arange(DIM).flip(0), persistent=False)

    def forward(self, h):
        y = self.proj(h)
        if self.kind == 0:
            return y + self.table[: h.shape[1]].to(h.dtype)
        if self.kind == 1:
            return y[..., self.order]
        if self.kind == 2:
            return y * self.table[torch.arange(h.shape[1])].to(h.dtype)
        return y.index_select(-1, self.order) * 0.5


class Names(Body):
    """Names that a program might use for something else."""

    def parts(self):
        names = ("grad_proj dy d_proj", "lambda lambda_ B", "x saved params", "torch kernels S")
        self.words = names[self.kind].split()
        for word in ("proj", *self.words):
            self.add_module(word, nn.Linear(DIM, DIM, bias=False))

    def forward(self, h):
        y = self.proj(h)
        for word in self.words:
            y = torch.tanh(getattr(self, word)(y)) + y
        return y


class Wide(Body):
    """Computes in float32 for a while."""

    def forward(self, h):
        y = self.proj(h)
        if self.kind < 2:
            return y.float().pow(2).mean(-1, keepdim=True).add(1e-3).rsqrt().to(h.dtype) * y
        return (y.to(torch.float32).softmax(-1) * y.float()).type_as(h)


class Sizes(Body):
    """Sizes of the sequence as numbers."""

    def forward(self, h):
        y, s = self.proj(h), h.shape[1]
        places = torch.arange(s, dtype=h.dtype)
        return (
            lambda: y / (s + 1) - h * (s - 2) / s,
            lambda: y * (1 / s) + h / s**0.5,
            lambda: y + ((places[:, None] - places[None, :]).abs() / s).mean(-1, keepdim=True),
            lambda: y.sum(1, keepdim=True) / s + h * (2 - s) / (s + 3),
        )[self.kind]()


class Stopped(Body):
    """Gradients that stop or change on the way."""

    def forward(self, h):
        y = self.proj(h)
        if self.kind == 0:
            return y * y.detach()
        if self.kind == 1:
            with torch.no_grad():
                size = y.abs().amax(-1, keepdim=True) + 0.1
            return y / size
        if self.kind == 2:
            return y + (torch.round(y * 4) / 4 - y).detach()
        hard = F.one_hot(y.argmax(-1), DIM).to(y.dtype)
        soft = y.softmax(-1)
        return hard + soft - soft.detach()


class Writes(Body):
    def forward(self, h):
        y = self.proj(h) * self.scale
        if self.kind == 0:
            y[..., :4] = h[..., :4] * 2
        elif self.kind == 1:
            y[..., 2:7] *= 0.5
            y += h
        elif self.kind == 2:
            out = torch.zeros_like(y)
            out[..., 0] = y[..., 1]
            out[..., 1:].copy_(y[..., 1:].tanh())
            return out
        else:
            y.mul_(2.0).clamp_(-1.5, 1.5)
        return y


class Picks(Body):
    """Sorts, extremes, choices and lists."""

    def forward(self, h):
        y = self.proj(h)
        if self.kind == 0:
            return y.sort(-1)[0] + y.max(-1, keepdim=True)[0]
        if self.kind == 1:
            return torch.where(y > 0, y, 0.1 * y.square()) + F.log_softmax(y, -1)
        if self.kind == 2:
            return torch.stack(y.unbind(-1)[::-1], -1) + y.roll(1, -1)
        low, high = torch.minimum(y, h), torch.maximum(y, h * 0.5)
        return torch.cat([low[..., :5], high[..., 5:]], -1)


class Started(Body):
    """Initial values of every kind."""

    def parts(self):
        self.proj = nn.Linear(DIM, DIM, bias=False)
        self.gain = nn.Parameter(torch.empty(DIM))
        with torch.no_grad():
            if self.kind == 0:
                nn.init.orthogonal_(self.proj.weight)
                nn.init.constant_(self.gain, 0.3)
            elif self.kind == 1:
                nn.init.eye_(self.proj.weight)
                self.gain.copy_(torch.linspace(0.5, 1.5, DIM))
            elif self.kind == 2:
                self.proj.weight.uniform_(-1, 1).div_(DIM**0.5).add_(0.01)
                nn.init.ones_(self.gain)
            else:
                nn.init.kaiming_normal_(self.proj.weight)
                self.proj.weight[:4].mul_(0)
                self.gain.fill_(1.0)[0] = 0.5

    def forward(self, h):
        return self.proj(h) * self.gain


class Idle(Body):
    """A parameter without a gradient."""

    def parts(self):
        self.proj = nn.Linear(DIM, DIM, bias=False)
        self.gate = nn.Parameter(torch.ones(DIM))

    def forward(self, h):
        return self.proj(h) * (self.gate > 0.5).to(h.dtype) + self.gate.detach()


class Layer(Body):
    def parts(self):
        self.layer = nn.TransformerEncoderLayer(
            DIM,
            HEADS,
            16,
            dropout=(0.0, 0.0, 0.2, 0.1)[self.kind],
            batch_first=True,
            norm_first=self.kind % 2 == 0,
        )

    def forward(self, h):
        return self.layer(h)


WEIGHTS: dict[type[Body], int] = {
    Mlp: 5, Gated: 5, Attention: 6, MaskedAttention: 5, HandAttention: 4, Convolution: 4,
    Decay: 4, Recurrent: 3, Routed: 5, Normed: 5, HandNormed: 4, Scalars: 4, Buffers: 4,
    Names: 4, Wide: 4, Sizes: 5, Stopped: 5, Writes: 5, Picks: 4, Started: 5, Idle: 3, Layer: 2,
    Experts: 5, Looped: 3, Scan: 4, Biased: 5, Dropped: 5, Streams: 4, InPlace: 4,
    Constants: 4, Checkpointed: 4, Padded: 4, Halves: 4, Memory: 4,
}  # fmt: skip
# One drawn module in fourteen has one of these, in turn.
EDGES: tuple[type[Body], ...] = (Hidden, Stateful, Rows)
FRAMES = ("residual", "residual", "pre-norm", "post-norm", "parallel", "gated", "bare", "written")


# How blocks follow each other; a number beside the logits is no part of the loss, and a load of
# routers makes one.
BALANCED = "balanced"
FORMS = (*("chain",) * 6, "two streams", "first read by all", "number beside", BALANCED)


class Block(nn.Module):
    """Bodies in a frame. shared: how often the block runs, with the same parameters."""

    def __init__(self, rng: random.Random, kinds: list[type[Body]]) -> None:
        super().__init__()
        self.frame = rng.choice(FRAMES)
        self.body = kinds[0](rng)
        self.other = kinds[1](rng) if self.frame in ("parallel", "gated") else None
        if "norm" in self.frame:
            self.norm = rng.choice((nn.LayerNorm, nn.RMSNorm))(DIM)
        self.shared = rng.choice((1, 1, 1, 2, 3, 4))

    def forward(self, h: Tensor) -> Tensor:
        for _ in range(self.shared):
            h = self.once(h)
        return h

    def once(self, h: Tensor) -> Tensor:
        if self.frame == "residual":
            return h + self.body(h)
        if self.frame == "pre-norm":
            return h + self.body(self.norm(h))
        if self.frame == "post-norm":
            return self.norm(h + self.body(h))
        if self.frame == "parallel":
            return h + self.body(h) + self.other(h)
        if self.frame == "gated":
            return h + torch.sigmoid(self.other(h)) * self.body(h)
        if self.frame == "written":
            h = h.clone()
            h += self.body(h.clone())
            return h
        return self.body(h)


class Drawn(nn.Module):
    """The module of a number under a seed; kinds: the bodies that it has."""

    def __init__(self, seed: int, number: int) -> None:
        super().__init__()
        rng = random.Random(f"grammar/{seed}/{number}")
        plan = bodies_of(seed, number)
        self.config = type("Config", (), {"vocab_size": VOCAB})
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block(rng, pair) for pair in plan)
        self.norm = nn.LayerNorm(DIM) if rng.random() < 0.5 else nn.Identity()
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        if rng.random() < 0.2:
            self.head.weight = self.embed.weight
        self.form = "chain" if (seed, number) in PINNED else rng.choice(FORMS)
        if self.form == BALANCED:
            self.router, self.load = nn.Linear(DIM, 5, bias=False), RouterLoad()

    def forward(self, tokens: Tensor) -> Tensor | tuple[Tensor, Tensor] | dict[str, Tensor]:
        h = first = self.embed(tokens)
        other = torch.tanh(first)
        if self.form == BALANCED:
            return self.balanced(h)
        for block in self.blocks:
            if self.form == "two streams":
                h, other = other, h + block(other)
            elif self.form == "first read by all":
                h = block(h) + 0.3 * first
            else:
                h = block(h)
        logits = self.head(self.norm(h))
        return (logits, h.square().mean()) if self.form == "number beside" else logits

    def balanced(self, h: Tensor) -> dict[str, Tensor]:
        load = self.load(self.router(h), 2, 0.3)
        for block in self.blocks:
            h = block(h)
            load = load + self.load(self.router(h), 2, 0.3)
        return {"logits": self.head(self.norm(h)), "router_load": load}


# Modules that tests name, as they were drawn when they were wrong.
PINNED: dict[tuple[int, int], list[list[type[Body]]]] = {
    (801443, 43): [[Layer, Normed], [Buffers, Sizes]],
}


def bodies_of(seed: int, number: int) -> list[list[type[Body]]]:
    """The bodies of each block. Number n has the n-th body of all, so that each is drawn."""
    if (seed, number) in PINNED:
        return PINNED[seed, number]
    rng = random.Random(f"bodies/{seed}/{number}")
    usual = list(WEIGHTS)
    blocks = [rng.choices(usual, list(WEIGHTS.values()), k=2) for _ in range(rng.choice((1, 2, 2)))]
    if number % 14 == 13:
        blocks[0][0] = EDGES[number // 14 % len(EDGES)]
    else:
        blocks[0][0] = usual[number % len(usual)] if number < 8 * len(usual) else blocks[0][0]
    return blocks


def productions(seed: int, number: int) -> set[str]:
    """Names of the bodies that a module runs."""
    module = Drawn(seed, number)
    return {type(m).__name__ for m in module.modules() if isinstance(m, Body)}
