"""Small modules at the edges of capture, each a body between an embedding and a head."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCAB, DIM = 37, 12


class Base(nn.Module):
    """Embedding, body, head. Bodies take h [B, S, 12]."""

    vocab_size = VOCAB

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.proj = nn.Linear(DIM, DIM, bias=False)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        self.parts()

    def parts(self) -> None:
        """Make what the body needs besides."""

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(self.embed(tokens)))

    def body(self, h: Tensor) -> Tensor:
        raise NotImplementedError


ZOO: dict[str, type[Base]] = {}


def zoo(body: Callable[[Base, Tensor], Tensor], parts: Callable | None = None) -> None:
    members = {"body": body} | ({"parts": parts} if parts else {})
    ZOO[body.__name__] = type(body.__name__, (Base,), members)


def with_parts(parts: Callable[[Base], None]) -> Callable:
    def add(body: Callable) -> Callable:
        zoo(body, parts)
        return body

    return add


def plain(body: Callable) -> Callable:
    zoo(body)
    return body


@plain
def detached(self, h):
    return h + self.proj(h).detach() * self.proj(h)


@plain
def all_detached(self, h):
    return self.proj(h.detach())


@plain
def no_grad_region(self, h):
    with torch.no_grad():
        scale = self.proj(h).abs().mean(-1, keepdim=True) + 1
    return self.proj(h) / scale + h


@plain
def cast_in_a_no_grad_region(self, h):
    """A cast that changes nothing gives its operand with its gradient; a copy, or a view, none."""
    y = self.proj(h)
    with torch.no_grad():
        size = y.to(h.dtype).type_as(h).abs().mean(-1, keepdim=True) + 1
        same, copy, view = y.to(h.dtype), y.to(h.dtype, copy=True), y.view(h.shape)
    return y / size + same * h + copy * view


@plain
def straight_through(self, h):
    y = self.proj(h)
    return y + (y.round() - y).detach()


class Triple(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g * 3


@plain
def custom_function(self, h):
    return Triple.apply(self.proj(h)) + h


def _hook(self):
    self.proj.weight.register_hook(lambda g: g * 2)


@with_parts(_hook)
def parameter_hook(self, h):
    return self.proj(h) + h


def _module_hook(self):
    self.proj.register_full_backward_hook(lambda m, i, o: (i[0] * 2,))


@with_parts(_module_hook)
def module_hook(self, h):
    return self.proj(h) + h


@plain
def sizes_divide(self, h):
    return self.proj(h) / (h.shape[1] - 1) + h * (h.shape[1] + 2) - h / h.shape[1]


@plain
def positions(self, h):
    s = h.shape[1]
    steps = torch.arange(s, dtype=h.dtype)
    return self.proj(h) * (steps[:, None] - steps[None, :]).abs().mean(-1, keepdim=True) / s


@plain
def partial_write(self, h):
    y = self.proj(h).clone()
    y[..., :4] = h[..., :4] * 2
    return y


@plain
def in_place_residual(self, h):
    h += self.proj(h)
    h = h * 1.5
    h += self.proj(h)
    return h


@plain
def in_place_part(self, h):
    y = self.proj(h) * 1.0
    y[:, :, 2:5] *= 3.0
    y.mul_(2.0).add_(h)
    return y


@plain
def view_read_after_a_write(self, h):
    y = self.proj(h) + 0.5
    part = y[..., :4]
    y *= 2.0
    return torch.cat([part, y[..., 4:].tanh()], -1)


@plain
def write_through_diagonal(self, h):
    weight = self.proj.weight.clone()
    weight.diagonal().mul_(0.5)
    return h @ weight


def _batch_norm(self):
    self.norm = nn.BatchNorm1d(DIM)


@with_parts(_batch_norm)
def batch_norm(self, h):
    return self.norm(self.proj(h).transpose(1, 2)).transpose(1, 2)


def _counter(self):
    self.register_buffer("count", torch.zeros(()))


@with_parts(_counter)
def counting_buffer(self, h):
    self.count += 1
    return self.proj(h) * self.count


def _dropout(self):
    self.drop = nn.Dropout(0.5)


@with_parts(_dropout)
def dropout(self, h):
    return self.drop(self.proj(h)) + h


@plain
def batch_mean(self, h):
    return self.proj(h) - h.mean(0, keepdim=True)


@plain
def batch_as_number(self, h):
    return self.proj(h) * h.shape[0]


@plain
def rows_compared(self, h):
    return self.proj(h) - h.amax(0, keepdim=True)


@plain
def random_noise(self, h):
    return self.proj(h) + torch.rand_like(h)


def _hostile(self):
    self.grad_proj = nn.Linear(DIM, DIM, bias=False)
    self.dy = nn.Linear(DIM, DIM, bias=False)
    self.d_proj = nn.Linear(DIM, DIM, bias=False)
    setattr(self, "lambda", nn.Linear(DIM, DIM, bias=False))
    self.lambda_ = nn.Linear(DIM, DIM, bias=False)


@with_parts(_hostile)
def hostile_names(self, h):
    for name in ("grad_proj", "dy", "d_proj", "lambda", "lambda_"):
        h = h + torch.tanh(getattr(self, name)(self.proj(h)))
    return h


def _scalar(self):
    self.gain = nn.Parameter(torch.tensor(0.5))


@with_parts(_scalar)
def scalar_parameter(self, h):
    return self.gain * self.proj(h) + h


@plain
def masked_attention(self, h):
    q = self.proj(h)
    s = h.shape[1]
    mask = torch.ones(s, s, dtype=torch.bool).tril()
    heads = q.unflatten(-1, (3, 4)).transpose(1, 2)
    out = F.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)
    return out.transpose(1, 2).flatten(2) + h


@plain
def attention_in_blocks(self, h):
    heads = self.proj(h).unflatten(-1, (3, 4)).transpose(1, 2)
    blocks = torch.arange(h.shape[1]) // 3
    mask = blocks[:, None] >= blocks[None, :]
    out = F.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)
    return out.transpose(1, 2).flatten(2) + h


@plain
def biased_attention(self, h):
    s = h.shape[1]
    places = torch.arange(s, dtype=h.dtype)
    bias = -(places[:, None] - places[None, :]).abs() * 0.3
    q = self.proj(h).unflatten(-1, (3, 4)).transpose(1, 2)
    out = F.scaled_dot_product_attention(q, q * 2, q + 1, attn_mask=bias)
    return out.transpose(1, 2).flatten(2) + h


@plain
def attention_of_three_dims(self, h):
    q = self.proj(h)
    return F.scaled_dot_product_attention(q, q, q, is_causal=True) + h


@plain
def cross_lengths(self, h):
    q = self.proj(h).unflatten(-1, (3, 4)).transpose(1, 2)
    k = q[:, :, : max(1, 3)]
    return F.scaled_dot_product_attention(q, k, k).transpose(1, 2).flatten(2) + h


def _experts(self):
    self.router = nn.Linear(DIM, 4, bias=False)
    self.experts = nn.ModuleList(nn.Linear(DIM, DIM, bias=False) for _ in range(4))


@with_parts(_experts)
def top_k_routing(self, h):
    weights, chosen = torch.topk(self.router(h).softmax(-1), 2, dim=-1)
    outs = torch.stack([expert(h) for expert in self.experts], dim=-2)
    picked = outs.gather(-2, chosen[..., None].expand(*chosen.shape, DIM))
    return (picked * weights[..., None]).sum(-2) + h


@plain
def view_of_all_tokens(self, h):
    return self.proj(h).view(-1, DIM).view(h.shape[0], -1, DIM)


@plain
def even_lengths(self, h):
    return self.proj(h) if h.shape[1] % 2 else self.proj(h) * 2


@plain
def looped_over_tokens(self, h):
    return torch.stack([self.proj(h[:, n]) for n in range(h.shape[1])], 1)


@plain
def lists(self, h):
    a, b, c = self.proj(h).chunk(3, dim=-1)
    return torch.cat([torch.stack([a, b], 0).sum(0), c, b], dim=-1) + h


def _group(self):
    self.norm = nn.GroupNorm(3, DIM)


@with_parts(_group)
def group_norm(self, h):
    b, s, d = h.shape
    return self.norm(self.proj(h).reshape(b * s, d)).reshape(b, s, d)


def _encoder(self):
    self.layer = nn.TransformerEncoderLayer(DIM, 3, 24, dropout=0.0, batch_first=True)


@with_parts(_encoder)
def encoder_layer(self, h):
    return self.layer(h)


def _rms(self):
    self.norm = nn.RMSNorm(DIM)


@with_parts(_rms)
def rms_default_eps(self, h):
    return self.norm(self.proj(h) * 0.01)


def _float32(self):
    self.gain = nn.Parameter(torch.full((DIM,), 1.1, dtype=torch.float32))


@with_parts(_float32)
def float32_parameter(self, h):
    return (self.proj(h).float() * self.gain).to(h.dtype) + h


def _unused(self):
    self.other = nn.Linear(DIM, DIM)


@with_parts(_unused)
def unused_parameter(self, h):
    return self.proj(h) + h + 0 * self.other.weight.detach().sum()


@plain
def max_norm(self, h):
    return (
        F.embedding(torch.zeros(h.shape[:2], dtype=torch.int64), self.embed.weight, max_norm=1.0)
        + h
    )


def _conv(self):
    self.conv = nn.Conv1d(DIM, DIM, 3, padding=2, groups=DIM)


@with_parts(_conv)
def convolution(self, h):
    y = self.conv(h.transpose(1, 2))[..., : h.shape[1]]
    return y.transpose(1, 2) + self.proj(h)


@plain
def derived_buffer(self, h):
    return self.proj(h) * self.head.weight.detach().norm() + h


@plain
def one_over_size(self, h):
    return self.proj(h) * (1 / h.shape[1]) + h


@plain
def divided_by_its_spectral_norm(self, h):
    return h @ (self.proj.weight / torch.linalg.matrix_norm(self.proj.weight, 2)).t()


@plain
def square_root_of_size(self, h):
    return self.proj(h) / math.sqrt(h.shape[1]) + h * math.sqrt(2 * h.shape[1] + 1)


@plain
def root_of_size(self, h):
    return self.proj(h) / h.shape[1] ** 0.5 + h * (2.0 / (h.shape[1] + 1))


@plain
def autocast(self, h):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return self.proj(h).to(h.dtype) + h


@plain
def branch_on_values(self, h):
    return self.proj(h) if h.sum() > 0 else h


@plain
def branch_on_size(self, h):
    return self.proj(h) if h.shape[1] > 8 else h + self.proj(h) * 2


def _table(self):
    self.table = nn.Parameter(torch.randn(32, DIM) * 0.1)


@with_parts(_table)
def table_of_positions(self, h):
    return self.proj(h) + self.table[: h.shape[1]]


def _float32_router(self):
    self.router = nn.Linear(DIM, 4).float()
    self.norm = nn.LayerNorm(DIM).float()


@with_parts(_float32_router)
def float32_router(self, h):
    shares = self.router(self.norm(h.float())).softmax(-1)
    return self.proj(h) * shares[..., :1].to(h.dtype) + h * shares[..., 1:2].to(h.dtype)
