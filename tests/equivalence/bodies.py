"""Bodies that route, scan, bias scores, drop, keep several streams; and those to be refused."""

import random

import torch
from proofs.zoo import Triple
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from meshwright.models.experts import ExpertCore
from meshwright.models.recurrence import RecurrenceCore

VOCAB, DIM, HEADS = 31, 12, 3


class Body(nn.Module):
    """One body: h [B, S, 12] -> [B, S, 12]. rng draws its variant once."""

    variants = 4

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.kind = rng.randrange(self.variants)
        self.scale = rng.choice((0.5, 1.5, 2))
        self.parts()

    def parts(self) -> None:
        self.proj = nn.Linear(DIM, DIM, bias=self.kind % 2 == 0)


class Experts(Body):
    """Top-k experts: grouped products, a shared expert, a correcting bias, groups of experts."""

    def parts(self):
        self.router = nn.Linear(DIM, 6, bias=False)
        self.up = nn.Parameter(torch.randn(6, 10, DIM) * 0.3)
        self.down = nn.Parameter(torch.randn(6, DIM, 10) * 0.3)
        self.core = ExpertCore()
        self.shared = nn.Linear(DIM, DIM, bias=False) if self.kind % 2 else None
        # As a router keeps that is balanced between steps; forward only reads it.
        start = torch.linspace(-0.2, 0.2, 6)
        self.correction = nn.Parameter(start, requires_grad=False)

    @property
    def chooses_by_bias(self) -> bool:
        """Tell whether the correction chooses."""
        return self.kind == 1

    def forward(self, h):
        flat = h.flatten(0, 1)
        weights, chosen = self.routed(self.router(flat))
        up = F.silu(self.core(flat, self.up, chosen, False))
        y = self.core(up, self.down, chosen, False)
        y = (y * weights.unsqueeze(-1)).sum(-2).view_as(h)
        return y if self.shared is None else y + torch.sigmoid(self.shared(h)) * h

    def routed(self, logits):
        if self.kind == 0:
            weights, chosen = torch.topk(logits.softmax(-1), 2, dim=-1)
            return weights / weights.sum(-1, keepdim=True), chosen
        if self.kind == 1:
            scores = logits.sigmoid()
            chosen = torch.topk(scores + self.correction.to(scores.dtype), 3, dim=-1)[1]
            return scores.gather(-1, chosen) * self.scale, chosen
        if self.kind == 2:
            best, chosen = torch.topk(logits, 2, dim=-1)
            return best.softmax(-1), chosen
        grouped = logits.unflatten(-1, (3, 2))
        kept = torch.topk(grouped.amax(-1), 2, dim=-1)[1]
        shown = torch.zeros_like(grouped[..., 0]).scatter(-1, kept, 1.0).unsqueeze(-1)
        masked = grouped.masked_fill(shown == 0, -1e9).flatten(-2)
        weights, chosen = torch.topk(masked.softmax(-1), 2, dim=-1)
        return weights, chosen


class Looped(Body):
    """Experts one after the other, each on all rows, kept by a mask of its own."""

    def parts(self):
        self.router = nn.Linear(DIM, 3, bias=self.kind == 2)
        self.experts = nn.ModuleList(nn.Linear(DIM, DIM, bias=False) for _ in range(3))

    def forward(self, h):
        probabilities = self.router(h).softmax(-1)
        weights, chosen = torch.topk(probabilities, 1 + self.kind % 2, dim=-1)
        out = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            share = (weights * (chosen == number)).sum(-1, keepdim=True)
            if self.kind == 3:
                out += share * expert(h)
            else:
                out = out + share * expert(h)
        return out


class Scan(Body):
    """Gated linear attention, a delta rule, a selective scan, and its parallel form."""

    def parts(self):
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.gate = nn.Linear(DIM, DIM if self.kind == 2 else HEADS)
        self.rate = nn.Linear(DIM, HEADS)
        self.core = RecurrenceCore()

    def forward(self, h):
        q, k, v = (x.unflatten(-1, (HEADS, -1)) for x in self.qkv(h).chunk(3, -1))
        g, beta = F.logsigmoid(self.gate(h)), torch.sigmoid(self.rate(h))
        if self.kind == 3:
            return self.parallel(q, k, v, g).flatten(2)
        if self.kind == 1:
            k = F.normalize(k, dim=-1)
        g = g.unflatten(-1, (HEADS, -1)) if self.kind == 2 else g
        return self.core(q * 0.5, k, v, g, beta, self.kind == 1).flatten(2)

    def parallel(self, q, k, v, g):
        """q k v [B, S, H, D], g [B, S, H]: every pair of places, decayed by the sum between."""
        past = g.cumsum(1).transpose(1, 2)
        places = torch.arange(g.shape[1])
        seen = places[:, None] >= places[None, :]
        decay = (past.unsqueeze(-1) - past.unsqueeze(-2)).masked_fill(~seen, float("-inf")).exp()
        return torch.einsum("bihd,bjhd,bhij,bjhe->bihe", q, k, decay, v)


class Biased(Body):
    """Attention with what is added to its scores, or stands beside them."""

    def parts(self):
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.out = nn.Linear(DIM, DIM, bias=False)
        self.table = nn.Embedding(8, HEADS)
        self.sinks = nn.Parameter(torch.linspace(-1, 1, HEADS))
        self.register_buffer("slopes", 2.0 ** -torch.arange(1.0, HEADS + 1))

    def forward(self, h):
        q, k, v = (x.unflatten(-1, (HEADS, 4)).transpose(1, 2) for x in self.qkv(h).chunk(3, -1))
        places = torch.arange(h.shape[1])
        apart = places[:, None] - places[None, :]
        scores = (q @ k.mT / 2).masked_fill(apart < 0, float("-inf"))
        if self.kind == 0:  # linear in the distance, of each head
            scores = scores - self.slopes.to(h.dtype)[:, None, None] * apart
        elif self.kind == 1:  # learnt by the distance, as in T5
            scores = scores + self.table(apart.clamp(0, 7)).permute(2, 0, 1)
        elif self.kind == 2:  # a sink of each head, which takes a share
            column = self.sinks.to(h.dtype).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
            shares = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
            return self.out((shares @ v).transpose(1, 2).flatten(2))
        else:  # chunks of three, and the first place
            near = places[:, None] // 3 == places[None, :] // 3
            scores = scores.masked_fill(~(near | (places == 0)), float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Dropped(Body):
    """Dropout of elements, of channels, of the weights of attention, of noise of ones."""

    def parts(self):
        self.proj = nn.Linear(DIM, DIM, bias=False)
        self.drop = nn.Dropout(0.2, inplace=self.kind == 0)
        self.channels = nn.Dropout1d(0.3)

    def forward(self, h):
        y = self.proj(h)
        if self.kind == 0:
            return F.dropout(self.drop(y), 0.1, self.training)
        if self.kind == 1:
            return self.channels(y.transpose(1, 2)).transpose(1, 2)
        if self.kind == 2:
            heads = y.unflatten(-1, (HEADS, 4)).transpose(1, 2)
            p = 0.25 if self.training else 0.0
            o = F.scaled_dot_product_attention(heads, heads, heads, dropout_p=p, is_causal=True)
            return o.transpose(1, 2).flatten(2)
        return y * F.dropout(torch.ones_like(y[..., :1]), 0.3) + self.drop(h)


class Streams(Body):
    """Several streams that mix in each layer, as hyper-connections and reversible layers do."""

    def parts(self):
        self.layers = nn.ModuleList(nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.mix = nn.Parameter(torch.eye(2) + 0.1)

    def forward(self, h):
        one, two, first = h, h * self.scale, h
        for layer in self.layers:
            if self.kind == 0:
                one, two = two, one + torch.tanh(layer(two))
            elif self.kind == 1:
                streams = torch.einsum("nm,mbsd->nbsd", self.mix, torch.stack([one, two]))
                one, two = streams.unbind(0)
                one = one + F.silu(layer(two))
            elif self.kind == 2:
                one, two = one + F.gelu(layer(two)), two + torch.tanh(layer(one))
            else:
                one = one + torch.tanh(layer(one)) + 0.2 * first
                two = torch.lerp(two, one, 0.5)
        return one + two


class InPlace(Body):
    """Values that are written again and again, through views of views."""

    def forward(self, h: Tensor) -> Tensor:
        y = self.proj(h)
        if self.kind == 0:
            for start in (0, 6):
                y[..., start : start + 6].mul_(0.5).add_(h[..., :6])
        elif self.kind == 1:
            y.transpose(1, 2)[:, ::2].mul_(0.5)
            y[..., 1::2] -= h[..., 1::2]
        elif self.kind == 2:
            parts = y.view(*y.shape[:2], HEADS, 4)
            parts[:, :, 0] = parts[:, :, 1] * 2
            parts[..., 3].sigmoid_()
        else:
            y.add_(h, alpha=0.5).masked_fill_(h > 0.5, 0.25)
            y[:, 1:] += y[:, :-1].clone()
        return y


class Constants(Body):
    """Numbers that forward makes tensors of."""

    def forward(self, h):
        y = self.proj(h)
        if self.kind == 0:
            return y * torch.tensor(0.1) + torch.zeros_like(h[0])
        if self.kind == 1:
            return y * torch.tensor([0.1] * DIM, dtype=h.dtype) + torch.as_tensor(0.3)
        if self.kind == 2:
            return torch.where(h > 0, y, h.new_tensor(-0.7)) / torch.tensor(3)
        return y * torch.tensor([[0.3], [1.7]], dtype=torch.float32).prod() + h.new_full((1,), 0.1)


class Checkpointed(Body):
    """Parts that backward computes again, dropouts among them."""

    def forward(self, h):
        once = F.dropout(h, 0.1) if self.kind > 1 else h
        y = checkpoint(self.part, once, use_reentrant=self.kind == 3)
        return F.dropout(y, 0.2) if self.kind == 2 else y

    def part(self, h):
        y = torch.tanh(self.proj(h)) * h
        return F.dropout(y, 0.3) if self.kind else y


class Padded(Body):
    """Attention that leaves out some places, in some rows all of them."""

    def parts(self):
        self.proj = nn.Linear(DIM, 3 * DIM, bias=False)

    def forward(self, h):
        batch, seq, _ = h.shape
        out = (h[..., 0] > 0.4) | (h[:, :1, 1] > 0.4)
        q, k, v = self.proj(h).view(batch, seq, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = ~out[:, None, None, :]
        if self.kind % 2:
            seen = seen.expand(-1, 1, seq, -1).tril()
        if self.kind > 1:
            seen = torch.zeros_like(seen, dtype=h.dtype).masked_fill(~seen, -torch.inf)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return y.transpose(1, 2).reshape(h.shape)


class Halves(Body):
    """Every other place, and as many as make the row whole again: sizes that say S in other words.

    The halves of an odd row differ by one.
    """

    def forward(self, h):
        y = self.proj(h)
        even, odd = y[:, ::2], y[:, 1::2]
        if self.kind == 0:
            return torch.cat([even, odd], 1)
        if self.kind == 1:
            return h * F.pad(even, (0, 0, 0, h.shape[1] // 2))
        if self.kind == 2:
            return torch.cat([even, torch.zeros_like(odd)], 1) - h * self.scale
        return torch.where(h > 0, torch.cat([odd.cumsum(1), even], 1), h)


class Memory(Body):
    """Tokens of memory before or behind a row, which make it longer than what context axes cut."""

    def parts(self):
        super().parts()
        self.memory = nn.Parameter(torch.randn(1 + self.kind, DIM) * 0.3)

    def forward(self, h):
        count, kept = len(self.memory), self.memory.expand(h.shape[0], -1, -1)
        if self.kind % 2:
            y = self.mixed(torch.cat([h, kept], 1))
            return y[:, : h.shape[1]] + y[:, -count:].mean(1, keepdim=True)
        return self.mixed(torch.cat([kept, h], 1))[:, count:]

    def mixed(self, x):
        return x + torch.tanh(self.proj(x)).cumsum(1) * 0.3


# Bodies of which each is refused, or computed.


class Hidden(Body):
    """What a graph does not show: gradients that are changed, and another way that a forward takes,
    on rare values or lengths, while it is traced."""

    variants = 9

    def parts(self):
        self.proj = nn.Linear(DIM, DIM, bias=False)
        if self.kind == 1:
            self.proj.weight.register_hook(lambda g: g * 2)
        if self.kind == 2:
            self.proj.register_full_backward_hook(lambda m, i, o: (i[0] * 2,))

    def forward(self, h):
        y = self.proj(h)
        if self.kind == 3:
            with torch.no_grad():
                y.mul_(2.0)
        if self.kind > 3:
            return y * (2 if self.rarely(h) else 3)
        return Triple.apply(y) if self.kind == 0 else y

    def rarely(self, h):
        length = h.shape[1]
        if self.kind == 4:
            return not torch.compiler.is_compiling() and length > 48
        if self.kind == 5:
            return isinstance(length, int) and length > 48
        if self.kind == 6:
            return type(h) is torch.Tensor and length > 48
        if self.kind == 7:
            return length**2 // 6400 == 1
        try:
            return h.detach().numpy().max() > 1e9
        except Exception:
            return False


class Stateful(Body):
    variants = 6

    def parts(self):
        self.proj = nn.Linear(DIM, DIM, bias=False)
        self.norm = nn.BatchNorm1d(DIM)
        self.drop = nn.AlphaDropout(0.3)
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0

    def forward(self, h):
        y = self.proj(h)
        if self.kind == 0:
            return self.norm(y.transpose(1, 2)).transpose(1, 2)
        if self.kind == 1:
            return self.drop(y)
        if self.kind == 2:
            self.seen += 1
            return y * self.seen
        if self.kind == 4:
            return y * torch.where(torch.rand(()) < 0.005, 2.0, 3.0)
        if self.kind == 5:
            return y * (1 + (self.proj.weight._version > 2))
        self.calls += 1
        return y * (1 + self.calls % 2)


class Rows(Body):
    """Rows of a batch that see each other, some of which show it on rare values only."""

    variants = 8

    def forward(self, h):
        y = self.proj(h)
        if self.kind == 0:
            return y - h.mean(0, keepdim=True)
        if self.kind == 1:
            return y * h.shape[0]
        if self.kind == 2:
            return y + h.flip(0)
        if self.kind == 3:
            return y - y.amax((0, 1), keepdim=True)
        if self.kind == 4:
            return y * (2 if h.shape[0] == 1 else 3)
        if self.kind == 5:
            return y * torch.where((h[:, 0, 0] > 1e3).all(), 2.0, 1.0)
        if self.kind == 6:
            return y + (h.abs() > 1e3).sum(0)
        return y + (h == h.roll(1, 0)).all(-1, keepdim=True)
