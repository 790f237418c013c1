"""More of the zoo: state, parts of a sequence, and what is made outside of forward."""

import functools
import math

import numpy as np
import torch
from proofs.zoo import DIM, plain, with_parts
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def _calls(self):
    self.calls = 0


@with_parts(_calls)
def counts_calls(self, h):
    self.calls += 1
    return self.proj(h) * (2.0 if self.calls > 20 else 1.0)


def _lazy(self):
    self.scale = None


@with_parts(_lazy)
def keeps_the_first_weights(self, h):
    if self.scale is None:
        self.scale = self.proj.weight.detach().abs().mean()
    return self.proj(h) / self.scale


def _experts_of_capacity(self):
    self.router = nn.Linear(DIM, 2)


@with_parts(_experts_of_capacity)
def capacity_over_the_batch(self, h):
    flat = self.proj(h).reshape(-1, DIM)
    weight, chosen = self.router(flat).softmax(-1).max(-1)
    hot = F.one_hot(chosen, 2)
    keep = ((hot.cumsum(0) * hot).sum(-1) <= 60).to(h.dtype)
    return (flat * (weight * keep)[:, None]).view_as(h) + h


def _copied(self):
    self.register_buffer("first", self.proj.weight.detach().clone())


@with_parts(_copied)
def buffer_of_a_weight(self, h):
    return h @ (self.proj.weight - self.first)


@plain
def mapped(self, h):
    return torch.vmap(torch.tanh)(self.proj(h)) + h


@plain
def shifted_tokens(self, h):
    return self.proj(h) + torch.cat([torch.zeros_like(h[:, :1]), h[:, :-1]], 1)


@plain
def made_constant(self, h):
    return self.proj(h) * (torch.linspace(0, 1, DIM) / 3)


def _drawn(self):
    self.register_buffer("noise", torch.randn(DIM))


@with_parts(_drawn)
def random_buffer(self, h):
    return self.proj(h) * self.noise


@plain
def keeps_to_look_at(self, h):
    self.last = self.proj(h)
    return self.last.tanh()


def _last(self):
    self.last = None


@with_parts(_last)
def reads_the_last(self, h):
    y = self.proj(h)
    mixed = y if self.last is None else y + 0.1 * self.last.mean()
    self.last = y.detach()
    return mixed


def _conv_norm(self):
    self.conv = nn.Conv1d(DIM, DIM, 3, padding=2)
    self.norm = nn.GroupNorm(3, DIM)


@with_parts(_conv_norm)
def grouped_after_convolution(self, h):
    y = self.conv(h.transpose(1, 2))[..., : h.shape[1]].transpose(1, 2)
    return self.norm(y.reshape(-1, DIM)).view_as(h)


@plain
def value_hook(self, h):
    y = self.proj(h)
    y.register_hook(lambda g: g * 2)
    return y.tanh()


@plain
def one_row_apart(self, h):
    return self.proj(h) * (2 if h.shape[0] == 1 else 3)


@plain
def mean_of_one_row(self, h):
    return self.proj(h) + (h.mean(0) if h.shape[0] == 1 else 0)


@plain
def rare_in_all_rows(self, h):
    return self.proj(h) * torch.where((h[:, 0, 0] > 1e3).all(), 2.0, 1.0)


@plain
def sorted_rows(self, h):
    return self.proj(h) + (h.sort(0)[0] > 1e3)


@plain
def writes_counted(self, h):
    return self.proj(h) * (1 + (self.proj.weight._version > 2))


@plain
def rare_draw(self, h):
    return self.proj(h) * torch.where(torch.rand(()) < 0.005, 2.0, 3.0)


@plain
def draw_of_no_use(self, h):
    torch.rand(DIM)
    return self.proj(h)


@plain
def shape_of_a_row(self, h):
    return self.proj(h) + torch.zeros_like(h[0]) + h.new_ones(DIM)


@plain
def made_of_numbers(self, h):
    y = self.proj(h) * torch.tensor(0.1) + torch.as_tensor([0.3] * DIM).to(h.dtype)
    y = y * torch.tensor(0.7, dtype=torch.float32) + h.new_tensor(-0.7) / torch.tensor(3)
    return y + torch.tensor([0.1] * DIM, dtype=h.dtype)


def _dropped(self, h):
    return F.dropout(self.proj(F.dropout(h, 0.2)).tanh(), 0.3)


@plain
def checkpointed_dropouts(self, h):
    y = checkpoint(_dropped, self, F.dropout(h, 0.1), use_reentrant=False)
    return F.dropout(y, 0.2)


@plain
def checkpointed_dropouts_reentrant(self, h):
    y = checkpoint(_dropped, self, F.dropout(h, 0.1), use_reentrant=True)
    return F.dropout(y, 0.2)


@plain
def autocast_off(self, h):
    with torch.autocast("cpu", enabled=False):
        y = self.proj(h.float()) * 2
    return y.to(h.dtype).sin()


@functools.lru_cache
def _causal(length):
    return torch.ones(length, length, dtype=torch.bool).tril()


def _kept_by_length(self):
    self.places = {}


@with_parts(_kept_by_length)
def caches_by_length(self, h):
    s = h.shape[1]
    if s not in self.places:
        self.places[s] = torch.arange(s)
    scores = (self.proj(h) @ h.mT).masked_fill(~_causal(s), -1e9) * (1 + self.places[s])
    return scores.softmax(-1) @ h


@plain
def logarithms_of_sizes(self, h):
    s = h.shape[1]
    y = self.proj(h) * math.log(s) / math.log(512) + 0.1 * math.log(s + 1, 2)
    return y / math.log(2 * s)


@plain
def functions_of_sizes(self, h):
    s = h.shape[1]
    y = self.proj(h) * math.exp(-s / 100) + h * math.log2(s) - math.log10(s + 1) * math.cos(s)
    return y + math.pow(s, 0.5) * math.pow(0.9, s) + h * math.sqrt(math.log(s)) * math.tanh(s / 9)


@plain
def reads_data(self, h):
    return self.proj(h) * self.proj.weight.data.abs().mean() + h.data


@plain
def writes_data(self, h):
    y = self.proj(h)
    y.data.mul_(2.0)
    return y


def _in_a_list(self):
    self.weights = [nn.Parameter(torch.randn(DIM, DIM))]


@with_parts(_in_a_list)
def parameter_in_a_list(self, h):
    return self.proj(h) @ self.weights[0]


def _twice(self):
    self.again = nn.Parameter(self.proj.weight.data)


@with_parts(_twice)
def two_on_one_memory(self, h):
    return self.proj(h) @ self.again


def _without_shape(self):
    self.late = nn.LazyLinear(DIM)


@with_parts(_without_shape)
def lazy_layer(self, h):
    return self.late(h)


@plain
def checkpoints_within_checkpoints(self, h):
    def inner(x):
        return torch.tanh(self.proj(x))

    def outer(x):
        return x * checkpoint(inner, x, use_reentrant=False)

    return checkpoint(outer, h, use_reentrant=False)


@plain
def tensors_of_sizes(self, h):
    return self.proj(h) / torch.tensor(h.shape[1]).sqrt() + torch.tensor(np.full(DIM, 0.5)).to(h)


@plain
def least_numbers_of_a_dtype(self, h):
    y = self.proj(h)
    scaled = y / (y.norm(dim=-1, keepdim=True) + torch.finfo(h.dtype).eps)
    return scaled * torch.rsqrt(h.var(-1, keepdim=True) + torch.finfo(h.dtype).eps)


def _tables(self):
    self.cosines = None
    self.register_buffer("mask", torch.ones(48, 48).tril())


@with_parts(_tables)
def table_made_at_need(self, h):
    s = h.shape[1]
    if self.cosines is None or self.cosines.shape[0] < s:
        self.cosines = torch.arange(s)[:, None].mul(torch.arange(DIM) / DIM).cos()
    return _attended(self, h) * self.cosines[:s].to(h.dtype)


@plain
def checkpointed_by_the_module(self, h):
    return checkpoint(lambda x: self.proj(x).sin() * x, h, use_reentrant=True)


def _looked_up(self):
    self.table = nn.Embedding(16, DIM)


@with_parts(_looked_up)
def positions_looked_up(self, h):
    return self.proj(h) + self.table(torch.arange(h.shape[1]))


def _mask(self):
    self.register_buffer("mask", torch.ones(48, 48).tril())


def _attended(self, h):
    scores = self.proj(h) @ h.transpose(1, 2) / DIM**0.5
    hidden = self.mask[: h.shape[1], : h.shape[1]] == 0
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ h


@with_parts(_mask)
def mask_of_a_table(self, h):
    return _attended(self, h)


@with_parts(_mask)
def branch_at_the_longest_row(self, h):
    return _attended(self, h) * (2 if h.shape[1] == len(self.mask) else 1)


@plain
def branch_at_one_length(self, h):
    return self.proj(h) * (2 if h.shape[1] == 512 else 1)


@plain
def branch_at_one_batch(self, h):
    return self.proj(h) * (2 if h.shape[0] == 24 else 1)


@plain
def branch_at_one_size(self, h):
    return self.proj(h) * (2 if h.numel() == 700 * DIM else 1)


@plain
def branch_at_many_tokens(self, h):
    return self.proj(h) * (2 if h.shape[0] * h.shape[1] + 5 > 5000 else 1)


@plain
def floats_of_integers(self, h):
    steps, (x, y) = torch.arange(h.shape[1]), self.proj(h).chunk(2, -1)
    angles = torch.outer(steps, 1.0 / (100 ** (torch.arange(0, DIM, 2) / DIM)))
    turned = torch.cat([x * angles.cos() - y * angles.sin(), y * angles.cos()], -1)
    return turned * ((steps > 2) * 0.3 + (steps + 1).sqrt())[:, None].to(h.dtype)


def _narrow(self):
    self.narrow = nn.Linear(DIM, DIM).bfloat16()


@with_parts(_narrow)
def narrow_parts(self, h):
    y = self.proj(h).half().sin().float().to(h.dtype)
    scale = torch.ones(DIM, dtype=torch.float16).type(torch.bfloat16)
    return y + (self.narrow(h.bfloat16()).tanh() * scale).type_as(h)


@plain
def cut_in_two(self, h):
    first, second = self.proj(h).chunk(2, dim=1)
    return torch.cat([second, first], 1)


@plain
def draws_by_itself(self, h):
    return self.proj(h) + torch.rand(DIM, generator=torch.Generator().manual_seed(3))


def _mean(self):
    self.register_buffer("mean", torch.zeros(DIM))


@with_parts(_mean)
def running_mean(self, h):
    with torch.no_grad():
        self.mean.mul_(0.9).add_(h.mean((0, 1)), alpha=0.1)
    return self.proj(h) - self.mean


def _orthogonal(self):
    self.turn = nn.utils.parametrizations.orthogonal(nn.Linear(DIM, DIM))


@with_parts(_orthogonal)
def orthogonal_weight(self, h):
    return self.turn(h)


def _orthogonal_at_once(self):
    linear = nn.Linear(DIM, DIM)
    self.turn = nn.utils.parametrizations.orthogonal(linear, use_trivialization=False)


@with_parts(_orthogonal_at_once)
def orthogonal_of_any_weight(self, h):
    return self.turn(h)


def _normed(self):
    self.turn = nn.utils.parametrizations.weight_norm(nn.Linear(DIM, DIM))


@with_parts(_normed)
def norms_of_drawn_weights(self, h):
    return self.turn(h)


def _normed_from_ones(self):
    _normed(self)
    nn.init.ones_(self.turn.parametrizations.weight.original0)


@with_parts(_normed_from_ones)
def norms_from_ones(self, h):
    return self.turn(h)


def _spectral(self):
    self.bound = nn.utils.parametrizations.spectral_norm(nn.Linear(DIM, DIM))


@with_parts(_spectral)
def spectral(self, h):
    return self.bound(h)


def _filter(self):
    self.filter = nn.Parameter(torch.randn(16, DIM))


@with_parts(_filter)
def fast_convolution(self, h):
    s = h.shape[1]
    made = torch.fft.rfft(h, 2 * s, dim=1) * torch.fft.rfft(self.filter[:s], 2 * s, dim=0)
    return self.proj(torch.fft.irfft(made, 2 * s, dim=1)[:, :s])


@functools.lru_cache
def _table(count):
    return torch.arange(count).float().cos()


@plain
def cached_for_ever(self, h):
    return self.proj(h) * _table(DIM)


def _frozen_weight(self):
    self.weight = nn.Parameter(torch.randn(DIM), requires_grad=False)


@with_parts(_frozen_weight)
def unfreezes_in_forward(self, h):
    self.weight.requires_grad_(True)
    return h + self.proj(h) * self.weight


def _trained_weight(self):
    self.weight = nn.Parameter(torch.randn(DIM))


@with_parts(_trained_weight)
def overwrites_what_a_weight_gives(self, h):
    given = self.proj(h) * self.weight
    given.zero_()
    return h + given + self.proj(h)


@with_parts(_trained_weight)
def copies_over_a_weight(self, h):
    return self.proj(h) + self.weight.clone().copy_(self.proj.weight[0])


@with_parts(_trained_weight)
def freezes_in_forward(self, h):
    self.weight.requires_grad_(False)
    return h + torch.stack([self.proj(h), self.weight.expand_as(h)]).sum(0)
