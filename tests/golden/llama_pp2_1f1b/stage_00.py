"""Stage 0 of 2, on pp rank 0: golden-llama, embed to layers.0.ffn.

Mesh pp=2 dp=1 tp=1; micro-batches: 4 of 1 rows a
data-parallel rank; ZeRO 0; recompute cheap; 1f1b.
All ranks of this stage run this text; they differ in TP_RANK and in what their buckets hold.
Shapes are local. `d_v` is the gradient of `v`, `d_v_from_u` the part of it through `u`,
`d_v_mul` a step towards it.
"""

import torch
import torch.nn.functional as F
from runtime import collectives, kernels, mesh
from runtime.layout import Instance, Piece

B = 1  # rows of a micro-batch on this rank
S = 8  # tokens of a row
TP_RANK = mesh.coordinate("tp")
TP = mesh.group("tp")
DEVICE = mesh.device()


def context(constants):
    """Values that depend on no parameter and no token, by name; computed once."""
    rope_inv_freq = constants["01bf1c3cbbe5feff"]
    rope_arange = torch.arange(S, dtype=torch.float32, device=DEVICE)
    rope_unsqueeze = rope_arange.reshape(S, 1)
    rope_to = rope_inv_freq.to(torch.float32)
    rope_mul = rope_unsqueeze * rope_to
    rope_cat = torch.cat((rope_mul, rope_mul), dim=-1)
    rope_cos = torch.cos(rope_cat)
    rope_sin = torch.sin(rope_cat)
    return {"rope.cos": rope_cos, "rope.sin": rope_sin}


def norm(x, w):
    # models/norms.py:35
    pow_ = torch.pow(x, 2)
    mean = pow_.mean([-1], keepdim=True)
    add = mean + 1e-05
    rsqrt = torch.rsqrt(add)
    mul = x * rsqrt
    return w * mul


def rope(x, cos, sin):
    # models/attention.py:101
    chunk = x.narrow(3, 0, 2)
    chunk_2 = x.narrow(3, 2, 2)
    mul = x * cos
    neg = -chunk_2
    cat = torch.cat((neg, chunk), dim=-1)
    mul_2 = cat * sin
    return mul + mul_2


def norm_with_rsqrt_mul(x, w):
    # models/norms.py:35
    pow_ = torch.pow(x, 2)
    mean = pow_.mean([-1], keepdim=True)
    add = mean + 1e-05
    rsqrt = torch.rsqrt(add)
    mul = x * rsqrt
    mul_2 = w * mul
    return mul_2, rsqrt, mul


# embed: used once on this stage

def embed_forward(params, tokens):
    """embed_embedding [B, S, 16], saved."""
    (embed_w,) = params
    # models/decoder.py:67
    embed_embedding = kernels.embedding(tokens, embed_w, start=0, num_embeddings=64)
    saved = (tokens,)
    return embed_embedding, saved


def embed_backward(params, saved, dy, grads):
    """Adds to grads; returns None."""
    (embed_w,) = params
    (tokens,) = saved
    (grad_embed_w,) = grads
    # models/decoder.py:67
    kernels.add_embedding_weight_grad(grad_embed_w, dy, tokens, start=0, rows=64)
    return None


# attention: used once on this stage

def attention_forward(params, x, rope_cos, rope_sin):
    """x [B, S, 16] -> add [B, S, 16], saved."""
    (attention_norm_w, attention_q_w, attention_k_w, attention_v_w, attention_o_w,) = params
    # models/norms.py:35
    attention_norm_mul_2 = norm(x, attention_norm_w)
    # models/attention.py:97
    attention_q_linear = kernels.linear(attention_norm_mul_2, attention_q_w)
    attention_transpose = attention_q_linear.reshape(B, S, 4, 4).transpose(1, 2)
    attention_k_linear = kernels.linear(attention_norm_mul_2, attention_k_w)
    attention_transpose_2 = attention_k_linear.reshape(B, S, 2, 4).transpose(1, 2)
    attention_v_linear = kernels.linear(attention_norm_mul_2, attention_v_w)
    attention_transpose_3 = attention_v_linear.reshape(B, S, 2, 4).transpose(1, 2)
    # models/attention.py:101
    attention_add = rope(attention_transpose, rope_cos, rope_sin)
    attention_add_2 = rope(attention_transpose_2, rope_cos, rope_sin)
    # models/attention.py:102
    attention_core_attention_o, attention_core_attention_lse = kernels.attention(
        attention_add, attention_add_2, attention_transpose_3, scale=0.5, causal=True, window=0,
        softcap=0.0,
    )
    attention_flatten = attention_core_attention_o.transpose(1, 2).reshape(B, S, 16)
    attention_o_linear = kernels.linear(attention_flatten, attention_o_w)
    # models/decoder.py:38
    add = x + attention_o_linear
    # saved for backward, a micro-batch: 1.6 KiB in 5 values
    saved = (
        x, rope_cos, rope_sin, attention_q_linear, attention_k_linear, attention_v_linear,
        attention_core_attention_o, attention_core_attention_lse,
    )
    return add, saved


def attention_backward(params, saved, dy, grads):
    """Adds to grads; returns d_x [B, S, 16]."""
    (attention_norm_w, attention_q_w, attention_k_w, attention_v_w, attention_o_w,) = params
    (
        x, rope_cos, rope_sin, attention_q_linear, attention_k_linear, attention_v_linear,
        attention_core_attention_o, attention_core_attention_lse,
    ) = saved
    (
        grad_attention_norm_w, grad_attention_q_w, grad_attention_k_w, grad_attention_v_w,
        grad_attention_o_w,
    ) = grads
    # models/attention.py:102
    d_attention_flatten = kernels.linear_input_grad(dy, attention_o_w)
    # recompute: models/attention.py:102
    attention_flatten = attention_core_attention_o.transpose(1, 2).reshape(B, S, 16)
    # models/attention.py:102
    kernels.add_linear_weight_grad(grad_attention_o_w, dy, attention_flatten)
    d_attention_core_attention_o = d_attention_flatten.reshape(B, S, 4, 4).transpose(1, 2)
    # recompute: models/attention.py:97
    attention_transpose = attention_q_linear.reshape(B, S, 4, 4).transpose(1, 2)
    # recompute: models/attention.py:101
    attention_add = rope(attention_transpose, rope_cos, rope_sin)
    # recompute: models/attention.py:97
    attention_transpose_2 = attention_k_linear.reshape(B, S, 2, 4).transpose(1, 2)
    # recompute: models/attention.py:101
    attention_add_2 = rope(attention_transpose_2, rope_cos, rope_sin)
    # recompute: models/attention.py:97
    attention_transpose_3 = attention_v_linear.reshape(B, S, 2, 4).transpose(1, 2)
    # models/attention.py:102
    d_attention_add, d_attention_add_2, d_attention_transpose_3 = kernels.attention_backward(
        d_attention_core_attention_o, attention_add, attention_add_2, attention_transpose_3,
        attention_core_attention_o, attention_core_attention_lse, scale=0.5, causal=True, window=0,
        softcap=0.0,
    )
    # models/attention.py:101
    d_attention_cat_2 = d_attention_add_2 * rope_sin
    d_attention_neg_2 = d_attention_cat_2.narrow(3, 0, 2)
    d_attention_chunk_2_2 = d_attention_cat_2.narrow(3, 2, 2)
    d_attention_chunk_2_3 = -d_attention_neg_2
    d_attention_transpose_2_from_mul_3 = d_attention_add_2 * rope_cos
    d_attention_transpose_2_from_chunk_2_3 = torch.ops.aten.slice_backward(
        d_attention_chunk_2_3, (B, 2, S, 4), 3, 2, 4, 1,
    )
    d_attention_transpose_2_sum = (
        d_attention_transpose_2_from_mul_3 + d_attention_transpose_2_from_chunk_2_3
    )
    d_attention_transpose_2_from_chunk_2_2 = torch.ops.aten.slice_backward(
        d_attention_chunk_2_2, (B, 2, S, 4), 3, 0, 2, 1,
    )
    d_attention_transpose_2 = d_attention_transpose_2_sum + d_attention_transpose_2_from_chunk_2_2
    d_attention_cat = d_attention_add * rope_sin
    d_attention_neg = d_attention_cat.narrow(3, 0, 2)
    d_attention_chunk = d_attention_cat.narrow(3, 2, 2)
    d_attention_chunk_2 = -d_attention_neg
    d_attention_transpose_from_mul = d_attention_add * rope_cos
    d_attention_transpose_from_chunk_2 = torch.ops.aten.slice_backward(
        d_attention_chunk_2, (B, 4, S, 4), 3, 2, 4, 1,
    )
    d_attention_transpose_sum = d_attention_transpose_from_mul + d_attention_transpose_from_chunk_2
    d_attention_transpose_from_chunk = torch.ops.aten.slice_backward(
        d_attention_chunk, (B, 4, S, 4), 3, 0, 2, 1,
    )
    d_attention_transpose = d_attention_transpose_sum + d_attention_transpose_from_chunk
    # models/attention.py:97
    d_attention_v_linear = d_attention_transpose_3.transpose(1, 2).reshape(B, S, 8)
    d_attention_norm_mul_2_from_v_linear = kernels.linear_input_grad(
        d_attention_v_linear, attention_v_w,
    )
    # recompute: models/norms.py:35
    attention_norm_mul_2, attention_norm_rsqrt, attention_norm_mul = norm_with_rsqrt_mul(
        x, attention_norm_w,
    )
    # models/attention.py:97
    kernels.add_linear_weight_grad(grad_attention_v_w, d_attention_v_linear, attention_norm_mul_2)
    d_attention_k_linear = d_attention_transpose_2.transpose(1, 2).reshape(B, S, 8)
    d_attention_norm_mul_2_from_k_linear = kernels.linear_input_grad(
        d_attention_k_linear, attention_k_w,
    )
    kernels.add_linear_weight_grad(grad_attention_k_w, d_attention_k_linear, attention_norm_mul_2)
    d_attention_norm_mul_2_sum = (
        d_attention_norm_mul_2_from_v_linear + d_attention_norm_mul_2_from_k_linear
    )
    d_attention_q_linear = d_attention_transpose.transpose(1, 2).reshape(B, S, 16)
    d_attention_norm_mul_2_from_q_linear = kernels.linear_input_grad(
        d_attention_q_linear, attention_q_w,
    )
    kernels.add_linear_weight_grad(grad_attention_q_w, d_attention_q_linear, attention_norm_mul_2)
    d_attention_norm_mul_2 = d_attention_norm_mul_2_sum + d_attention_norm_mul_2_from_q_linear
    # models/norms.py:35
    d_attention_norm_mul = d_attention_norm_mul_2 * attention_norm_w
    d_attention_norm_w_mul = d_attention_norm_mul_2 * attention_norm_mul
    d_attention_norm_w_sum = d_attention_norm_w_mul.sum([0, 1], keepdim=True)
    d_attention_norm_w = d_attention_norm_w_sum.reshape(16)
    grad_attention_norm_w.add_(d_attention_norm_w)
    d_attention_norm_rsqrt_mul = d_attention_norm_mul * x
    d_x_from_attention_norm_mul = d_attention_norm_mul * attention_norm_rsqrt
    d_attention_norm_rsqrt = d_attention_norm_rsqrt_mul.sum([2], keepdim=True)
    d_x_sum = dy + d_x_from_attention_norm_mul
    d_attention_norm_add_pow = torch.pow(attention_norm_rsqrt, 3)
    d_attention_norm_add_mul = d_attention_norm_rsqrt * -0.5
    d_attention_norm_add = d_attention_norm_add_mul * d_attention_norm_add_pow
    d_attention_norm_pow_expand = d_attention_norm_add.expand(B, S, 16)
    d_attention_norm_pow = d_attention_norm_pow_expand / 16
    d_x_from_attention_norm_pow_mul = x * 2.0
    d_x_from_attention_norm_pow = d_attention_norm_pow * d_x_from_attention_norm_pow_mul
    d_x = d_x_sum + d_x_from_attention_norm_pow
    return d_x


# ffn: used once on this stage

def ffn_forward(params, x):
    """x [B, S, 16] -> add_2 [B, S, 16], saved."""
    (ffn_norm_w, ffn_gate_w, ffn_up_w, ffn_down_w,) = params
    # models/norms.py:35
    ffn_norm_mul_2 = norm(x, ffn_norm_w)
    # models/ffn.py:27
    ffn_gate_linear = kernels.linear(ffn_norm_mul_2, ffn_gate_w)
    ffn_silu = F.silu(ffn_gate_linear)
    ffn_up_linear = kernels.linear(ffn_norm_mul_2, ffn_up_w)
    ffn_mul = ffn_silu * ffn_up_linear
    ffn_down_linear = kernels.linear(ffn_mul, ffn_down_w)
    # models/decoder.py:39
    add_2 = x + ffn_down_linear
    # saved for backward, a micro-batch: 2.0 KiB in 2 values
    saved = (x, ffn_gate_linear, ffn_up_linear,)
    return add_2, saved


def ffn_backward(params, saved, dy, grads):
    """Adds to grads; returns d_x [B, S, 16]."""
    (ffn_norm_w, ffn_gate_w, ffn_up_w, ffn_down_w,) = params
    (x, ffn_gate_linear, ffn_up_linear,) = saved
    (grad_ffn_norm_w, grad_ffn_gate_w, grad_ffn_up_w, grad_ffn_down_w,) = grads
    # models/ffn.py:27
    d_ffn_mul = kernels.linear_input_grad(dy, ffn_down_w)
    # recompute: models/ffn.py:27
    ffn_silu = F.silu(ffn_gate_linear)
    ffn_mul = ffn_silu * ffn_up_linear
    # models/ffn.py:27
    kernels.add_linear_weight_grad(grad_ffn_down_w, dy, ffn_mul)
    d_ffn_up_linear = d_ffn_mul * ffn_silu
    d_ffn_silu = d_ffn_mul * ffn_up_linear
    d_ffn_norm_mul_2_from_up_linear = kernels.linear_input_grad(d_ffn_up_linear, ffn_up_w)
    # recompute: models/norms.py:35
    ffn_norm_mul_2, ffn_norm_rsqrt, ffn_norm_mul = norm_with_rsqrt_mul(x, ffn_norm_w)
    # models/ffn.py:27
    kernels.add_linear_weight_grad(grad_ffn_up_w, d_ffn_up_linear, ffn_norm_mul_2)
    d_ffn_gate_linear = torch.ops.aten.silu_backward(d_ffn_silu, ffn_gate_linear)
    d_ffn_norm_mul_2_from_gate_linear = kernels.linear_input_grad(d_ffn_gate_linear, ffn_gate_w)
    kernels.add_linear_weight_grad(grad_ffn_gate_w, d_ffn_gate_linear, ffn_norm_mul_2)
    d_ffn_norm_mul_2 = d_ffn_norm_mul_2_from_up_linear + d_ffn_norm_mul_2_from_gate_linear
    # models/norms.py:35
    d_ffn_norm_mul = d_ffn_norm_mul_2 * ffn_norm_w
    d_ffn_norm_w_mul = d_ffn_norm_mul_2 * ffn_norm_mul
    d_ffn_norm_w_sum = d_ffn_norm_w_mul.sum([0, 1], keepdim=True)
    d_ffn_norm_w = d_ffn_norm_w_sum.reshape(16)
    grad_ffn_norm_w.add_(d_ffn_norm_w)
    d_ffn_norm_rsqrt_mul = d_ffn_norm_mul * x
    d_x_from_ffn_norm_mul = d_ffn_norm_mul * ffn_norm_rsqrt
    d_ffn_norm_rsqrt = d_ffn_norm_rsqrt_mul.sum([2], keepdim=True)
    d_x_sum = dy + d_x_from_ffn_norm_mul
    d_ffn_norm_add_pow = torch.pow(ffn_norm_rsqrt, 3)
    d_ffn_norm_add_mul = d_ffn_norm_rsqrt * -0.5
    d_ffn_norm_add = d_ffn_norm_add_mul * d_ffn_norm_add_pow
    d_ffn_norm_pow_expand = d_ffn_norm_add.expand(B, S, 16)
    d_ffn_norm_pow = d_ffn_norm_pow_expand / 16
    d_x_from_ffn_norm_pow_mul = x * 2.0
    d_x_from_ffn_norm_pow = d_ffn_norm_pow * d_x_from_ffn_norm_pow_mul
    d_x = d_x_sum + d_x_from_ffn_norm_pow
    return d_x


PIECES = {
    "embed": Piece(
        forward=embed_forward,
        backward=embed_backward,
        takes_x=False,
        context=(),
        data=("tokens",),
    ),
    "attention": Piece(
        forward=attention_forward,
        backward=attention_backward,
        takes_x=True,
        context=("rope.cos", "rope.sin"),
        data=(),
    ),
    "ffn": Piece(
        forward=ffn_forward,
        backward=ffn_backward,
        takes_x=True,
        context=(),
        data=(),
    ),
}

INSTANCES = (
    Instance(
        name="embed",
        piece="embed",
        params=("embed.weight",),
        buckets=("embed",),
        reduces=("embed",),
    ),
    Instance(
        name="layers.0.attention",
        piece="attention",
        params=(
            "layers.0.attention_norm.weight", "layers.0.attention.q.weight",
            "layers.0.attention.k.weight", "layers.0.attention.v.weight",
            "layers.0.attention.o.weight",
        ),
        buckets=("layers.0.attention",),
        reduces=("layers.0.attention",),
    ),
    Instance(
        name="layers.0.ffn",
        piece="ffn",
        params=(
            "layers.0.ffn_norm.weight", "layers.0.ffn.gate.weight", "layers.0.ffn.up.weight",
            "layers.0.ffn.down.weight",
        ),
        buckets=("layers.0.ffn",),
        reduces=("layers.0.ffn",),
    ),
)

# What crosses the stage's borders: (local shape, dtype), None at the ends.
ENTRY = None
EXIT = ((B, S, 16), torch.float32)


def forward(run, microbatch, x):
    """One micro-batch through this stage: tokens in, to stage 1."""
    for index, item in enumerate(INSTANCES):
        run.prefetch(index + 1)  # gather the next parameters behind this compute
        piece = run.pieces[item.piece]
        operands = run.operands(index, microbatch)
        inputs = (x, *operands) if piece.takes_x else operands
        x, saved = piece.forward(run.params(index), *inputs)
        run.keep(index, microbatch, saved)
        run.release(index)
    return x


def backward(run, microbatch, dy):
    """The same micro-batch back; gradients are added into buckets and reduced behind compute."""
    for index in reversed(range(len(INSTANCES))):
        run.prefetch(index - 1)
        piece = run.pieces[INSTANCES[index].piece]
        saved = run.saved(index, microbatch)
        dy = piece.backward(run.params(index), saved, dy, run.grads(index))
        run.release(index)
        run.reduce(index)
    return dy
