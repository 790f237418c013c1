"""More of the zoo: complex numbers, indices, reductions and functions of elements."""

import math

import torch
from proofs.zoo import DIM, plain, with_parts
from torch import nn
from torch._higher_order_ops.scan import scan
from torch.nn import functional as F


@plain
def divides_by_a_deviation(self, h):
    """Whose gradient is no number in a row of one token."""
    y = self.proj(h)
    away = y - y.mean(1, keepdim=True)
    return away / (away.square().mean(1, keepdim=True).sqrt() + 1)


@plain
def written_into_narrow(self, h):
    """What is written wraps, and takes the dtype of what it is written into."""
    places = torch.full(h.shape[:2], 250, dtype=torch.uint8, device=h.device)
    places += torch.arange(h.shape[1], device=h.device)
    places.cumsum_(1)
    narrow = self.proj(h).bfloat16()
    narrow *= h.float().sin()
    seen = places > 100
    seen &= h[..., 0] > 0
    return narrow.to(h.dtype) * seen[..., None] + h * (places / 256)[..., None].to(h.dtype)


@plain
def complex_rotation(self, h):
    angles = torch.arange(h.shape[1])[:, None] * 0.5 ** torch.arange(DIM // 2)
    turns = torch.polar(torch.ones_like(angles), angles)[None] * 1.5
    pairs = torch.view_as_complex(h.float().reshape(*h.shape[:-1], -1, 2))
    turned = torch.view_as_real(pairs * turns).flatten(2)
    return h + self.proj(turned.type_as(h))


@plain
def complex_products(self, h):
    a, b = torch.complex(h, self.proj(h)), torch.complex(self.proj(h), h * 0.3)
    both = (a * b.conj() + a.unsqueeze(0).squeeze(0)).transpose(0, 1).contiguous().transpose(0, 1)
    return h + both.real * 0.1 + both.imag


@plain
def cat_of_one(self, h):
    return h + torch.cat([self.proj(h)], dim=-1)


@plain
def tensor_index(self, h):
    order = torch.tensor([3, 1, 0, 2, 5, 4, 7, 6, 9, 8, 11, 10])
    return self.proj(h)[..., order] + h


def _heads_of_two_sizes(self):
    self.queries, self.keys = nn.Linear(DIM, 24), nn.Linear(DIM, 24)


@with_parts(_heads_of_two_sizes)
def values_of_another_size(self, h):
    parts = (self.queries(h), self.keys(h), self.proj(h))
    q, k, v = (x.unflatten(-1, (3, -1)).transpose(1, 2) for x in parts)
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return o.transpose(1, 2).flatten(2)


@plain
def variance(self, h):
    y = self.proj(h)
    return (y - y.mean(-1, keepdim=True)) / (y.var(-1, keepdim=True) + 1e-3).sqrt()


@plain
def log_softmax(self, h):
    return F.log_softmax(self.proj(h), dim=-1) + F.elu(h, 0.7)


@plain
def max_over(self, h):
    y = self.proj(h)
    return y - y.max(-1, keepdim=True)[0] + y.max(dim=-1, keepdim=True).values * h


@plain
def sorted_values(self, h):
    return torch.sort(self.proj(h), dim=-1)[0] + h


@plain
def cumulative_product(self, h):
    return torch.cumprod(torch.sigmoid(self.proj(h)), dim=1) + h


@plain
def product_with_zeros(self, h):
    return torch.cumprod(F.relu(self.proj(h) * 3).round() + 1, dim=1) / 50 + torch.cumprod(
        h * (h > 0), dim=1
    )


@plain
def fill_infinite(self, h):
    s = h.shape[1]
    mask = torch.full((s, s), float("-inf")).triu(1)
    scores = self.proj(h) @ h.transpose(1, 2) / math.sqrt(DIM) + mask
    return scores.softmax(-1) @ h


def _positive(self):
    self.rate = nn.Parameter(torch.full((DIM,), 1e-3))


@with_parts(_positive)
def logarithm_of_a_weight(self, h):
    return self.proj(h) + self.rate.log() * 0.01


@plain
def region_by_values(self, h):
    return torch.cond((h > 0).all(), lambda y: y * 2, lambda y: y.clone(), (self.proj(h),))


@plain
def region_by_tokens(self, h):
    def step(kept, row):
        return kept * 0.9 + row, kept * 0.9 + row

    return scan(step, torch.zeros_like(h[:, 0]), self.proj(h), dim=1)[1]


@plain
def asserted_values(self, h):
    assert h.isfinite().all()
    return self.proj(h)


@plain
def boolean_index(self, h):
    y = torch.zeros_like(h)
    kept = h[..., 0] > 0
    y[kept] = self.proj(h[kept])
    return h + y


@plain
def places_by_values(self, h):
    with torch.no_grad():
        rows, places = torch.where(h[..., 0] > 0)
    return h.index_put((rows, places), self.proj(h[rows, places]))


@plain
def length_by_values(self, h):
    return self.proj(h)[:, : (h[0, 0] > 0).sum().item()].sum(1, keepdim=True) + h


@plain
def numbers_in_places(self, h):
    """Of numbers that neither float32 nor bfloat16 holds."""
    y = self.proj(h).clone()
    y[h[..., 0] > 0.3] = 0.1
    y[:, :1] = 0.7
    return y + h


def _shifted(self):
    self.shift = nn.Parameter(torch.zeros(DIM))


@with_parts(_shifted)
def shifted_before_a_norm_over_tokens(self, h):
    """The gradient of the shift is zero but for rounding."""
    for _ in range(3):
        h = h + F.instance_norm((self.proj(h) + self.shift).transpose(1, 2)).transpose(1, 2)
    return h


@with_parts(_shifted)
def shifted_before_a_deviation(self, h):
    """Where a row is of one token, the last digits of weights move a gradient a million times."""
    for _ in range(2):
        y = self.proj(h) + self.shift
        y = y - y.mean(1, keepdim=True)
        h = h + y / (y.std(1, keepdim=True) + 1e-6)
    return h


@plain
def small_and_detached(self, h):
    return h + 1e-10 * self.proj(h).detach() * self.proj(h)


@plain
def taken_along_dims(self, h):
    """Sizes beside the dim broadcast, of either; along the tokens, too."""
    y = self.proj(h)
    sorted_, first = torch.take_along_dim(y, h.argsort(-1), -1), y.take_along_dim(h.argsort(1), 1)
    one = torch.take_along_dim(h, h.mean(-1, keepdim=True).argsort(dim=1), dim=1)
    many = torch.take_along_dim(h[:, :, :1].expand(-1, -1, 3), h.argsort(-1) % 3, 2)
    few = h.mean(1, keepdim=True).take_along_dim(h.argsort(-1), dim=-1)
    return sorted_ + first + one + many + few
