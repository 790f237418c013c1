"""More of the zoo: rows that see each other, most of them where drawn tokens do not show it."""

import functools

import torch
from proofs.zoo import DIM, plain, with_parts
from torch import nn
from torch.nn import functional as F


def _rare(h):
    """[B, 1, 1]: true for next to no row."""
    return (h[:, 0, 0] > 1e3)[:, None, None]


@plain
def one_long_row_apart(self, h):
    return self.proj(h) * (2 if h.shape[0] == 1 and h.shape[1] == 10 else 3)


@plain
def squeezed_rows(self, h):
    return self.proj(h) + h.squeeze()


@plain
def rows_flattened_and_rolled(self, h):
    return self.proj(h) + h.flatten(0, 1).roll(1, 0).view_as(h) * _rare(h)


@plain
def alike_rows_by_their_numbers(self, h):
    """As a mask of padding is read where there is none."""
    counts = torch.ones(h.shape[:2], dtype=torch.bool, device=h.device)
    rows, places = (torch.arange(n, device=h.device) for n in h.shape[:2])
    return self.proj(h) * counts[rows[:, None], places].unsqueeze(-1)


@plain
def rows_reshaped_into_others(self, h):
    mixed = h.transpose(0, 1).flatten(0, 1).view(h.shape)
    return self.proj(h) + mixed * _rare(h)


@plain
def equal_rows_counted(self, h):
    same = (h[:, None, :2] == h[None, :, :2]).all(-1).all(-1)
    return self.proj(h) * same.sum(1)[:, None, None]


@plain
def rows_shifted(self, h):
    return self.proj(h) + F.pad(h, (0, 0, 0, 0, 1, 0))[:-1] * _rare(h)


@plain
def first_row_indexed(self, h):
    zeros = torch.zeros_like(h[:, 0, 0], dtype=torch.int64)
    return self.proj(h) + h[zeros] * _rare(h)


@plain
def rows_contracted(self, h):
    return self.proj(h) + torch.einsum("bsd,cse,ce->bse", h, h, h[:, 1]) * _rare(h)


@plain
def normed_over_rows(self, h):
    normed = F.batch_norm(h.mT, None, None, training=True).mT
    return self.proj(h) + normed * _rare(h)


@plain
def numbers_of_rows(self, h):
    return self.proj(h) * (1 + torch.arange(h.shape[0]) // 64)[:, None, None]


@plain
def rows_summed_of_nothing(self, h):
    return self.proj(h) * torch.ones(h.shape[0]).sum().clamp(min=50)


def _warm(self):
    self.config = type("Config", (), {})()
    self.config.step = 0


@with_parts(_warm)
def warms_up_in_a_config(self, h):
    self.config.step += 1
    return self.proj(h) * (0.0 if self.config.step <= 40 else 1.0)


_CALLS = {"seen": 0}


@plain
def counts_in_a_global(self, h):
    _CALLS["seen"] += 1
    return self.proj(h) * (2.0 if _CALLS["seen"] > 500 else 1.0)


def _by_shape(self):
    self.kept = {}


@with_parts(_by_shape)
def keeps_weights_by_shape(self, h):
    key = str(tuple(h.shape))
    if key not in self.kept:
        self.kept[key] = self.proj.weight.detach().norm()
    return self.proj(h) / self.kept[key]


@functools.lru_cache
def _norm_of(weight, shape):
    return weight.detach().norm()


@plain
def keeps_weights_in_a_cache(self, h):
    return self.proj(h) / _norm_of(self.proj.weight, str(h.shape))


@with_parts(_by_shape)
def keeps_weights_by_width(self, h):
    if DIM not in self.kept:
        self.kept[DIM] = self.proj.weight.detach().norm()
    return self.proj(h) / self.kept[DIM]


@plain
def looks_a_length_up(self, h):
    return self.proj(h) * {10: 2.0}.get(h.shape[1], 1.0)


@plain
def length_as_text(self, h):
    return self.proj(h) * (2.0 if f"{h.shape[1]}" == "10" else 1.0)


class _Slots:
    __slots__ = ("seen",)

    def __init__(self):
        self.seen = 0


def _slots(self):
    self.counter = _Slots()


@with_parts(_slots)
def counts_in_slots(self, h):
    self.counter.seen += 1
    return self.proj(h) * (2.0 if self.counter.seen > 500 else 1.0)


def _closure(self):
    seen = 0

    def schedule():
        nonlocal seen
        seen += 1
        return 2.0 if seen > 500 else 1.0

    self.schedule = schedule


@with_parts(_closure)
def counts_in_a_closure(self, h):
    return self.proj(h) * self.schedule()


@plain
def flags_moved(self, h):
    return self.proj(h) * (1 + (h[:, 0, 0] > 1e3).roll(1, 0)[:, None, None])


@plain
def flags_multiplied(self, h):
    usual = (h[:, 0, 0] < 1e3).long()
    return self.proj(h) * usual.cumprod(0)[:, None, None]


@plain
def rows_added_to_the_first(self, h):
    first = torch.zeros_like(h[:, 0, 0], dtype=torch.int64)
    return self.proj(h) + torch.zeros_like(h).index_add(0, first, h * _rare(h))


@plain
def rolled_by_the_rows_tried(self, h):
    return self.proj(h) + h.roll(5, 0) * _rare(h)


@plain
def triangle_of_rows(self, h):
    return self.proj(h) + h[..., 0].tril(-16)[..., None]


# Those that are computed.


@plain
def rows_by_numbers_made_in_steps(self, h):
    order = h[..., 0].argsort(1)
    rows = torch.arange(h.shape[0]).to(torch.int64).view(-1, 1)
    return self.proj(h) + h[rows, order] - h[rows.expand_as(order), order.flip(1)]


@plain
def rows_by_their_numbers(self, h):
    places = h.argmax(1)
    rows = torch.arange(h.shape[0])[:, None]
    return self.proj(h) + h[rows, places, torch.arange(DIM)][:, None]


def _sequence_first(self):
    self.attention = nn.MultiheadAttention(DIM, 3)


@with_parts(_sequence_first)
def sequence_before_rows(self, h):
    x = h.transpose(0, 1)
    hidden = torch.full((h.shape[1], h.shape[1]), float("-inf")).triu(1).to(h.dtype)
    return self.attention(x, x, x, attn_mask=hidden)[0].transpose(0, 1)


@plain
def tokens_flattened(self, h):
    flat = h.reshape(-1, DIM)
    best, chosen = self.proj(flat).topk(2, dim=-1)
    return torch.zeros_like(flat).scatter(-1, chosen, best.softmax(-1)).view_as(h)


@plain
def masked_by_length(self, h):
    counts = (h[..., 0] > 0).sum(1)
    seen = torch.arange(h.shape[1])[None] < counts[:, None]
    return self.proj(h) * seen[..., None]


@plain
def apart_from_the_token_24(self, h):
    y = self.proj(h)
    return torch.cat([y[:, :24], y[:, 24:] * 2], 1) + h


@plain
def window_of_the_last_tokens(self, h):
    y = self.proj(h)
    return h + y[:, -3:].mean(1, keepdim=True) + y[:, h.shape[1] - 3 :].mean(1, keepdim=True)


@plain
def padded_to_a_multiple(self, h):
    padded = F.pad(h, (0, 0, 0, -h.shape[1] % 4)).unflatten(1, (-1, 4))
    return self.proj(padded.mean(2)).repeat_interleave(4, 1)[:, : h.shape[1]]
