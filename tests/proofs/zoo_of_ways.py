"""More of the zoo: forwards that take another way while they are traced, most of them where drawn
tokens do not show it."""

import torch
from proofs.zoo import DIM, plain, with_parts
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


@plain
def asks_for_a_compiler(self, h):
    return self.proj(h) * (1 + (not torch.compiler.is_compiling()) * (h.shape[1] > 48))


@torch.jit.script
def scripted(x):
    return x * x.sigmoid()


@plain
def calls_a_scripted_function(self, h):
    return self.proj(scripted(h))


def _scripted_part(module):
    module.act = torch.jit.script(nn.Linear(DIM, DIM))


@with_parts(_scripted_part)
def has_a_scripted_part(self, h):
    return self.proj(h) + self.act(h)


@plain
def maps_a_function(self, h):
    return self.proj(h) + torch.vmap(lambda row: row * row.sum())(h)


@plain
def asks_for_a_trace(self, h):
    if not torch.jit.is_tracing() and type(h) is torch.Tensor and h.shape[1] > 48:
        return self.proj(h)
    return self.proj(h) * 2


@plain
def takes_a_size_for_a_number(self, h):
    rare = isinstance(h.shape[1], int) and h.shape[1] > 48
    return self.proj(h) * (2 if rare else 3)


@plain
def tries_to_read_values(self, h):
    scale = 2.0
    try:
        scale = 3.0 if float(h.detach().sum()) > 1e9 else scale
    except RuntimeError:
        pass
    return self.proj(h) * scale


@plain
def writes_values_down(self, h):
    return self.proj(h) * (2 if "1e+09" in str(h) else 3)


def _counted(self):
    self.register_buffer("scale", torch.ones(()))


@with_parts(_counted)
def takes_one_way(self, h):
    parts = [self.proj(h) * k for k in range(1, 3)]
    try:
        y = sum(parts) * self.scale
    except RuntimeError:
        y = h
    return y if isinstance(h, torch.Tensor) and self.training else h


def _padded(self):
    self.encoder = nn.TransformerEncoderLayer(DIM, 2, 2 * DIM, dropout=0.0, batch_first=True)


@with_parts(_padded)
def encodes_rows_of_padding(self, h):
    """In some rows everything is padding."""
    return self.encoder(h, src_key_padding_mask=(h[:, :1, 0] > 0).expand(-1, h.shape[1]))


@plain
def attends_to_nothing(self, h):
    """The first query of each row has -inf everywhere."""
    queries = torch.arange(h.shape[1], device=h.device)[:, None] == 0
    mask = torch.zeros_like(h[:, :, :1]).masked_fill(queries, -torch.inf)
    mask = mask.expand(-1, -1, h.shape[1])
    return F.scaled_dot_product_attention(self.proj(h), h, h, attn_mask=mask)


def _mapped(self):
    self.weights = nn.Parameter(torch.full((2, DIM // 2, DIM // 2), 0.1))


@with_parts(_mapped)
def maps_over_weights(self, h):
    parts = h.unflatten(-1, (2, DIM // 2))
    return torch.vmap(torch.matmul, in_dims=(2, 0), out_dims=2)(parts, self.weights).flatten(2)


@plain
def maps_by_one_made_before(self, h):
    return self.proj(h) + SQUARES(h)


SQUARES = torch.vmap(torch.square, in_dims=1, out_dims=1)


@plain
def takes_a_gradient_of_a_function(self, h):
    return h * torch.func.grad(lambda y: y.sin().sum())(self.proj(h))


@plain
def takes_a_gradient_of_each_row(self, h):
    return h * torch.func.vmap(torch.func.grad_and_value(lambda y: y.sin().sum()))(self.proj(h))[0]


@plain
def takes_a_value_and_a_gradient(self, h):
    return h * torch.func.grad_and_value(lambda y: y.sin().sum())(self.proj(h))[0]


@plain
def derives_along_ones(self, h):
    return torch.func.jvp(self.proj, (h,), (torch.ones_like(h),))[1] + h


@plain
def derives_backward(self, h):
    return h + torch.func.vjp(self.proj, h)[1](h)[0]


@plain
def adds_by_an_associative_scan(self, h):
    return associative_scan(torch.add, self.proj(h), 1, combine_mode="generic")


def _causal(score, row, head, query, key):
    return torch.where(query >= key, score, -torch.inf)


@plain
def attends_by_a_function(self, h):
    q = self.proj(h)[:, None]
    return flex_attention(q, h[:, None], h[:, None], score_mod=_causal)[:, 0]


@plain
def attends_by_blocks(self, h):
    blocks = create_block_mask(lambda b, h, q, k: q >= k, None, None, h.shape[1], h.shape[1], "cpu")
    q = self.proj(h)[:, None]
    return flex_attention(q, q, q, block_mask=blocks)[:, 0]


@plain
def attends_by_a_bias_of_torch(self, h):
    q, bias = self.proj(h)[:, None], causal_lower_right(h.shape[1], h.shape[1])
    return F.scaled_dot_product_attention(q, q, q, attn_mask=bias)[:, 0]


@plain
def draws_as_many_by_itself(self, h):
    return self.proj(h) + torch.randn(h.shape, generator=torch.Generator().manual_seed(3))


@torch.compile
def compiled(x):
    return x * torch.sigmoid(1.7 * x)


@plain
def calls_a_compiled_function(self, h):
    return self.proj(compiled(h))


def _compiled_part(module):
    module.part = torch.compile(nn.Linear(DIM, DIM))


@with_parts(_compiled_part)
def has_a_compiled_part(self, h):
    return self.proj(h) + self.part(h)
