"""More of the zoo: layers of torch.nn with masks."""

import torch
from proofs.zoo import DIM, with_parts
from torch import nn


def _causal(h):
    s = h.shape[1]
    return torch.triu(torch.ones(s, s, dtype=torch.bool), 1)


def _padded(h):
    """Some positions that values decide, never the first."""
    return (h[..., 0] > 0) & (torch.arange(h.shape[1]) > 0)


def _encoder(self):
    layer = nn.TransformerEncoderLayer(DIM, 3, 24, dropout=0.0, batch_first=True)
    self.layers = nn.TransformerEncoder(layer, 2)


@with_parts(_encoder)
def encoder_of_two_masks(self, h):
    return self.layers(h, mask=_causal(h), src_key_padding_mask=_padded(h))


@with_parts(_encoder)
def encoder_of_a_causal_mask(self, h):
    return self.layers(h, mask=nn.Transformer.generate_square_subsequent_mask(h.shape[1]))


@with_parts(_encoder)
def encoder_of_a_window(self, h):
    return self.layers(h, mask=_causal(h) | torch.ones_like(_causal(h)).tril(-3))


def _decoder(self):
    layer = nn.TransformerDecoderLayer(DIM, 3, 24, dropout=0.0, batch_first=True)
    self.layers = nn.TransformerDecoder(layer, 1)


@with_parts(_decoder)
def decoder_of_masks(self, h):
    mask = _causal(h)
    return self.layers(
        h, self.proj(h), tgt_mask=mask, memory_mask=mask, tgt_key_padding_mask=_padded(h)
    )


def _learned_key(self):
    self.attention = nn.MultiheadAttention(DIM, 2, batch_first=True, add_bias_kv=True)


@with_parts(_learned_key)
def attention_with_a_learned_key(self, h):
    return h + self.attention(h, h, h, attn_mask=_causal(h), need_weights=False)[0]


@with_parts(lambda self: None)
def distances(self, h):
    return h + torch.cdist(h, self.proj.weight)


def _head_of_zeros(self):
    nn.init.zeros_(self.head.weight).requires_grad_(False)


@with_parts(_head_of_zeros)
def gradients_of_zero(self, h):
    return self.proj(h)
