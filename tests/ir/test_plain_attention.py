"""Attention written out, or under a mask that is a tensor: what becomes the semantic op.

Whether a mask is causal is told by its ops; here it is told by its values at several lengths, too.
"""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.ir.capture.export import trace
from meshwright.ir.capture.mask_reading import of_matrix
from meshwright.ir.capture.shown import Chosen, window_of
from meshwright.ir.graph import Op

LONGEST, HEADS, DIM = 24, 2, 16
HIDDEN = float("-inf")
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _shares(scores: Tensor, v: Tensor) -> Tensor:
    return F.softmax(scores, dim=-1) @ v


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def _places(q: Tensor) -> tuple[Tensor, Tensor]:
    places = torch.arange(q.shape[2])
    return places[:, None], places[None, :]


def _within(q: Tensor, window: int) -> Tensor:
    i, j = _places(q)
    return (j <= i) & (j > i - window)


def _buffer(q, k, v, table):
    shown = table[:, :, : q.shape[2], : q.shape[2]]
    return _shares(_scores(q, k).masked_fill(shown == 0, HIDDEN), v)


def _ones(q, k, v, table):
    return F.scaled_dot_product_attention(q, k, v, _square(q, torch.ones).bool().tril())


def _square(q: Tensor, make: Callable[..., Tensor], *fill: float) -> Tensor:
    return make((q.shape[2], q.shape[2]), *fill, dtype=q.dtype)


def _added(q, k, v, table):
    return _shares(_scores(q, k) + _square(q, torch.full, HIDDEN).triu(1), v)


def _least(q, k, v, table):
    hidden = (1.0 - _square(q, torch.ones).tril()) * torch.finfo(q.dtype).min
    return _shares(_scores(q, k) + hidden, v)


def _compared(q, k, v, table):
    i, j = _places(q)
    wide = torch.where(j > i, HIDDEN, _scores(q, k).float())
    return _shares(wide, v.float()).to(q.dtype)


def _columns(q, k, v, table):
    """Keys laid out by columns, as in the first GPT-2."""
    scores = torch.matmul(q, k.permute(0, 1, 3, 2)) * 0.3
    i, j = _places(q)
    return _shares(torch.where(i - j >= 0, scores, torch.finfo(scores.dtype).min), v)


def _window(q, k, v, table):
    return F.scaled_dot_product_attention(q, k, v, _within(q, 5), scale=0.2)


def _hidden_window(q, k, v, table):
    i, j = _places(q)
    return _shares(_scores(q, k).masked_fill((j > i) | (j <= i - 5), HIDDEN), v)


def _bands(q, k, v, table):
    return F.scaled_dot_product_attention(q, k, v, _square(q, torch.ones).tril().triu(-4).bool())


def _two_masks(q, k, v, table):
    i, j = _places(q)
    scores = _scores(q, k).masked_fill(j > i, HIDDEN)
    return _shares(scores.masked_fill(i - j > 4, HIDDEN), v)


def _equations(q, k, v, table):
    scores = torch.einsum("b h i d, b h j d -> b h i j", q, k) * 0.3
    hidden = _square(q, torch.ones).bool().triu(1)
    shares = scores.masked_fill(hidden, -torch.finfo(q.dtype).max).softmax(-1)
    return torch.einsum("b h i j, b h j d -> b h i d", shares, v)


def _reference_of_llama(q, k, v, table):
    length = q.shape[2]
    mask = torch.full((length, length), HIDDEN).triu(1)
    mask = torch.hstack([torch.zeros((length, 0)), mask]).type_as(q)
    shares = F.softmax((_scores(q, k) + mask).float(), dim=-1).type_as(q)
    return torch.matmul(shares, v)


def _two_fills(q, k, v, table):
    """`generate_square_subsequent_mask` of older torch."""
    mask = (_square(q, torch.ones).triu() == 1).transpose(0, 1).float()
    mask = mask.masked_fill(mask == 0, HIDDEN).masked_fill(mask == 1, 0.0)
    return _shares(_scores(q, k) + mask[None, None], v)


def _products_of_batches(q, k, v, table):
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).unflatten(0, (-1, HEADS))
    shares = F.softmax((scores + _square(scores, torch.full, HIDDEN).triu(1)).flatten(0, 1), -1)
    return torch.bmm(shares, v).unflatten(0, (-1, HEADS))


def _one_head(q, k, v, table):
    q, k, v = (x[:, 0] for x in (q, k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    shown = table[0, 0, : q.shape[1], : q.shape[1]]
    out = F.softmax(scores.masked_fill(shown == 0, HIDDEN), dim=-1) @ v
    return torch.stack([out] * HEADS, dim=1)


def _all_keys(q, k, v, table):
    return _shares(_scores(q, k), v)


TAKEN: dict[str, tuple[Attend, bool, int]] = {
    "a buffer": (_buffer, True, 0),
    "ones": (_ones, True, 0),
    "added": (_added, True, 0),
    "the least number": (_least, True, 0),
    "compared": (_compared, True, 0),
    "keys by columns": (_columns, True, 0),
    "a window": (_window, True, 5),
    "a hidden window": (_hidden_window, True, 5),
    "bands": (_bands, True, 5),
    "two masks": (_two_masks, True, 5),
    "equations": (_equations, True, 0),
    "Llama's reference": (_reference_of_llama, True, 0),
    "two fills": (_two_fills, True, 0),
    "products of batches": (_products_of_batches, True, 0),
    "one head": (_one_head, True, 0),
    "all keys": (_all_keys, False, 0),
}


def _strict(q, k, v, table):
    """No query sees its own key but the first."""
    i, j = _places(q)
    return _shares(_scores(q, k).masked_fill((j >= i) & (i > 0), HIDDEN), v)


def _next(q, k, v, table):
    i, j = _places(q)
    return F.scaled_dot_product_attention(q, k, v, j <= i + 1)


def _blocks(q, k, v, table):
    i, j = _places(q)
    return F.scaled_dot_product_attention(q, k, v, (j <= i) & (i // 4 == j // 4))


def _slopes(q, k, v, table):
    i, j = _places(q)
    linear = torch.where(j <= i, 0.5 * (j - i).to(q.dtype), HIDDEN)
    return F.scaled_dot_product_attention(q, k, v, linear)


def _soft(q, k, v, table):
    """A mask that leaves something of what it hides."""
    return _shares(_scores(q, k) + _square(q, torch.full, -10.0).triu(1), v)


def _masked_before_the_scale(q, k, v, table):
    i, j = _places(q)
    return _shares((q @ k.mT).masked_fill(j > i, -1e5) * 1e-5, v)


def _rounded_scores(q, k, v, table):
    return _shares(torch.div(q @ k.mT, 0.25, rounding_mode="floor"), v)


def _scores_read_twice(q, k, v, table):
    scores = _scores(q, k).masked_fill(_places(q)[1] > _places(q)[0], HIDDEN)
    shares = F.softmax(scores, dim=-1)
    return shares @ v * shares.amax(-1, keepdim=True)


def _of_rows(q, k, v, table):
    """Windows of which each head has its own."""
    i, j = _places(q)
    near = i - j < torch.tensor([3, 6])[:, None, None]
    return F.scaled_dot_product_attention(q, k, v, (j <= i) & near)


def _over_queries(q, k, v, table):
    i, j = _places(q)
    return F.softmax(_scores(q, k).masked_fill(j > i, -1e5), dim=-2) @ v


def _one_query(q, k, v, table):
    """All queries see what the first one does."""
    first = _square(q, torch.ones).tril().bool()[:1].expand(q.shape[2], -1)
    return F.scaled_dot_product_attention(q, k, v, first)


def _rounded_places(q, k, v, table):
    i, j = (places.to(torch.bfloat16) for places in _places(q))
    return F.scaled_dot_product_attention(q, k, v, j <= i)


LEFT: dict[str, Attend] = {
    "one query for all": _one_query,
    "rounded places": _rounded_places,
    "its own key hidden": _strict,
    "the next key seen": _next,
    "blocks": _blocks,
    "slopes": _slopes,
    "a soft mask": _soft,
    "masked before the scale": _masked_before_the_scale,
    "rounded scores": _rounded_scores,
    "scores read twice": _scores_read_twice,
    "windows of heads": _of_rows,
    "a softmax over queries": _over_queries,
}


class _Model(nn.Module):
    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend = attend
        self.embed = nn.Embedding(32, DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.head = nn.Linear(DIM, 32, bias=False)
        square = torch.ones(LONGEST, LONGEST).tril().view(1, 1, LONGEST, LONGEST)
        self.register_buffer("table", square)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        heads = self.qkv(h).unflatten(-1, (3, HEADS, DIM // HEADS)).permute(2, 0, 3, 1, 4)
        out = self.attend(*heads, self.table)
        return self.head(h + out.transpose(1, 2).flatten(2))


def _attention_of(attend: Attend) -> list[Op]:
    made = trace(lambda: _Model(attend), "plain", "f32", 32)
    return [op for op in made.graph.ops if op.target == "mw.attention"]


@pytest.mark.parametrize("name", TAKEN)
def test_causal_masks_and_windows_hold_no_scores(name: str) -> None:
    attend, causal, window = TAKEN[name]
    (op,) = _attention_of(attend)
    assert (op.attr("causal"), op.attr("window")) == (causal, window)


@pytest.mark.parametrize("name", LEFT)
def test_other_masks_are_left_as_they_are(name: str) -> None:
    assert not _attention_of(LEFT[name])


@pytest.mark.parametrize("window", [1, 3, 8])
def test_a_constant_is_read_by_its_values(window: int) -> None:
    seen = torch.ones(8, 8, dtype=torch.bool).tril().triu(1 - window)
    read = of_matrix(seen.view(1, 8, 8))
    assert isinstance(read, Chosen)
    assert window_of(read) == (window if window < 8 else 0)
    seen[5, 2] = ~seen[5, 2]
    assert of_matrix(seen) is None
