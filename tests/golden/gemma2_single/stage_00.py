"""Stage 0 of 1, on pp rank 0: golden-gemma2, embed to head.

Mesh pp=1 dp=1 tp=1; micro-batches: 1 of 4 rows a
data-parallel rank; ZeRO 0; recompute none; 1f1b.
All ranks of this stage run this text; they differ in TP_RANK and in what their buckets hold.
Shapes are local. A name `d_v` is the gradient of `v`.
"""

import torch
import torch.nn.functional as F
from runtime import collectives, kernels, mesh
from runtime.layout import Instance, Piece

B = 4  # rows of a micro-batch on this rank
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


# embed: used 1 times on this stage

def embed_forward(params, tokens):
    """mul [B, S, 16], saved."""
    (embed_w,) = params
    # models/decoder.py:64
    embed_embedding = kernels.embedding(tokens, embed_w, start=0, num_embeddings=64)
    mul = embed_embedding * 4.0
    saved = (tokens,)
    return mul, saved


def embed_backward(params, saved, dy, grads):
    """Adds to grads; returns None."""
    (embed_w,) = params
    (tokens,) = saved
    (grad_embed_w,) = grads
    # gradients
    mul_2 = dy * 4.0
    d_embed_w = kernels.embedding_weight_grad(mul_2, tokens, start=0, rows=64)
    grad_embed_w.add_(d_embed_w)
    return None


# attention: used 1 times on this stage

def attention_forward(params, x, rope_cos, rope_sin):
    """x [B, S, 16] -> add [B, S, 16], saved."""
    (
        attention_norm_w, attention_q_w, attention_k_w, attention_v_w, attention_o_w,
        attention_post_norm_w,
    ) = params
    # models/norms.py:49
    attention_norm_add = attention_norm_w + 1.0
    # models/norms.py:50
    attention_norm_pow = torch.pow(x, 2)
    attention_norm_mean = attention_norm_pow.mean([-1], keepdim=True)
    attention_norm_add_2 = attention_norm_mean + 1e-06
    attention_norm_rsqrt = torch.rsqrt(attention_norm_add_2)
    attention_norm_mul = x * attention_norm_rsqrt
    attention_norm_mul_2 = attention_norm_mul * attention_norm_add
    # models/attention.py:81
    attention_q_linear = kernels.linear(attention_norm_mul_2, attention_q_w)
    attention_view = attention_q_linear.reshape(B, S, 4, 4)
    attention_transpose = attention_view.transpose(1, 2)
    attention_k_linear = kernels.linear(attention_norm_mul_2, attention_k_w)
    attention_view_2 = attention_k_linear.reshape(B, S, 2, 4)
    attention_transpose_2 = attention_view_2.transpose(1, 2)
    attention_v_linear = kernels.linear(attention_norm_mul_2, attention_v_w)
    attention_view_3 = attention_v_linear.reshape(B, S, 2, 4)
    attention_transpose_3 = attention_view_3.transpose(1, 2)
    # models/attention.py:85
    attention_chunk = attention_transpose.narrow(3, 0, 2)
    attention_chunk_2 = attention_transpose.narrow(3, 2, 2)
    attention_mul = attention_transpose * rope_cos
    attention_neg = -attention_chunk_2
    attention_cat = torch.cat((attention_neg, attention_chunk), dim=-1)
    attention_mul_2 = attention_cat * rope_sin
    attention_add = attention_mul + attention_mul_2
    attention_chunk_2_2 = attention_transpose_2.narrow(3, 0, 2)
    attention_chunk_2_3 = attention_transpose_2.narrow(3, 2, 2)
    attention_mul_3 = attention_transpose_2 * rope_cos
    attention_neg_2 = -attention_chunk_2_3
    attention_cat_2 = torch.cat((attention_neg_2, attention_chunk_2_2), dim=-1)
    attention_mul_4 = attention_cat_2 * rope_sin
    attention_add_2 = attention_mul_3 + attention_mul_4
    # models/attention.py:86
    attention_core_attention_o, attention_core_attention_lse = kernels.attention(
        attention_add, attention_add_2, attention_transpose_3, scale=0.3535533905932738,
        causal=True, window=4, softcap=50.0,
    )
    attention_transpose_4 = attention_core_attention_o.transpose(1, 2)
    attention_flatten = attention_transpose_4.reshape(B, S, 16)
    attention_o_linear = kernels.linear(attention_flatten, attention_o_w)
    # models/norms.py:49
    attention_post_norm_add = attention_post_norm_w + 1.0
    # models/norms.py:50
    attention_post_norm_pow = torch.pow(attention_o_linear, 2)
    attention_post_norm_mean = attention_post_norm_pow.mean([-1], keepdim=True)
    attention_post_norm_add_2 = attention_post_norm_mean + 1e-06
    attention_post_norm_rsqrt = torch.rsqrt(attention_post_norm_add_2)
    attention_post_norm_mul = attention_o_linear * attention_post_norm_rsqrt
    attention_post_norm_mul_2 = attention_post_norm_mul * attention_post_norm_add
    # models/decoder.py:35
    add = x + attention_post_norm_mul_2
    # saved for backward, a micro-batch: 16.9 KiB in 14 values
    saved = (
        x, rope_cos, rope_sin, attention_norm_add, attention_norm_rsqrt, attention_norm_mul,
        attention_norm_mul_2, attention_transpose_3, attention_add, attention_add_2,
        attention_core_attention_o, attention_core_attention_lse, attention_flatten,
        attention_o_linear, attention_post_norm_add, attention_post_norm_rsqrt,
        attention_post_norm_mul,
    )
    return add, saved


def attention_backward(params, saved, dy, grads):
    """Adds to grads; returns d_x [B, S, 16]."""
    (
        attention_norm_w, attention_q_w, attention_k_w, attention_v_w, attention_o_w,
        attention_post_norm_w,
    ) = params
    (
        x, rope_cos, rope_sin, attention_norm_add, attention_norm_rsqrt, attention_norm_mul,
        attention_norm_mul_2, attention_transpose_3, attention_add, attention_add_2,
        attention_core_attention_o, attention_core_attention_lse, attention_flatten,
        attention_o_linear, attention_post_norm_add, attention_post_norm_rsqrt,
        attention_post_norm_mul,
    ) = saved
    (
        grad_attention_norm_w, grad_attention_q_w, grad_attention_k_w, grad_attention_v_w,
        grad_attention_o_w, grad_attention_post_norm_w,
    ) = grads
    # gradients
    mul = dy * attention_post_norm_mul
    mul_2 = dy * attention_post_norm_add
    sum = mul.sum([0, 1], keepdim=True)
    d_attention_post_norm_w = sum.reshape(16)
    grad_attention_post_norm_w.add_(d_attention_post_norm_w)
    mul_3 = mul_2 * attention_o_linear
    mul_4 = mul_2 * attention_post_norm_rsqrt
    sum_2 = mul_3.sum([2], keepdim=True)
    pow = torch.pow(attention_post_norm_rsqrt, 3)
    mul_5 = sum_2 * -0.5
    mul_6 = mul_5 * pow
    expand = mul_6.expand(B, S, 16)
    div = expand / 16
    pow_2 = attention_o_linear
    mul_7 = pow_2 * 2.0
    mul_8 = div * mul_7
    add_2 = mul_4 + mul_8
    linear_input_grad = kernels.linear_input_grad(add_2, attention_o_w)
    kernels.add_linear_weight_grad(grad_attention_o_w, add_2, attention_flatten)
    view_2 = linear_input_grad.reshape(B, S, 4, 4)
    transpose = view_2.transpose(1, 2)
    attention_backward_dq, attention_backward_dk, attention_backward_dv = kernels.attention_backward(
        transpose, attention_add, attention_add_2, attention_transpose_3,
        attention_core_attention_o, attention_core_attention_lse, scale=0.3535533905932738,
        causal=True, window=4, softcap=50.0,
    )
    mul_9 = attention_backward_dk * rope_sin
    slice = mul_9.narrow(3, 0, 2)
    slice_2 = mul_9.narrow(3, 2, 2)
    neg = -slice
    mul_10 = attention_backward_dk * rope_cos
    slice_backward = torch.ops.aten.slice_backward(neg, (B, 2, S, 4), 3, 2, 4, 1)
    add_3 = mul_10 + slice_backward
    slice_backward_2 = torch.ops.aten.slice_backward(slice_2, (B, 2, S, 4), 3, 0, 2, 1)
    add_4 = add_3 + slice_backward_2
    mul_11 = attention_backward_dq * rope_sin
    slice_3 = mul_11.narrow(3, 0, 2)
    slice_4 = mul_11.narrow(3, 2, 2)
    neg_2 = -slice_3
    mul_12 = attention_backward_dq * rope_cos
    slice_backward_3 = torch.ops.aten.slice_backward(neg_2, (B, 4, S, 4), 3, 2, 4, 1)
    add_5 = mul_12 + slice_backward_3
    slice_backward_4 = torch.ops.aten.slice_backward(slice_4, (B, 4, S, 4), 3, 0, 2, 1)
    add_6 = add_5 + slice_backward_4
    transpose_2 = attention_backward_dv.transpose(1, 2)
    view_3 = transpose_2.reshape(B, S, 8)
    linear_input_grad_2 = kernels.linear_input_grad(view_3, attention_v_w)
    kernels.add_linear_weight_grad(grad_attention_v_w, view_3, attention_norm_mul_2)
    transpose_3 = add_4.transpose(1, 2)
    view_4 = transpose_3.reshape(B, S, 8)
    linear_input_grad_3 = kernels.linear_input_grad(view_4, attention_k_w)
    kernels.add_linear_weight_grad(grad_attention_k_w, view_4, attention_norm_mul_2)
    add_7 = linear_input_grad_2 + linear_input_grad_3
    transpose_4 = add_6.transpose(1, 2)
    view_5 = transpose_4.reshape(B, S, 16)
    linear_input_grad_4 = kernels.linear_input_grad(view_5, attention_q_w)
    kernels.add_linear_weight_grad(grad_attention_q_w, view_5, attention_norm_mul_2)
    add_8 = add_7 + linear_input_grad_4
    mul_13 = add_8 * attention_norm_mul
    mul_14 = add_8 * attention_norm_add
    sum_3 = mul_13.sum([0, 1], keepdim=True)
    d_attention_norm_w = sum_3.reshape(16)
    grad_attention_norm_w.add_(d_attention_norm_w)
    mul_15 = mul_14 * x
    mul_16 = mul_14 * attention_norm_rsqrt
    sum_4 = mul_15.sum([2], keepdim=True)
    add_9 = dy + mul_16
    pow_3 = torch.pow(attention_norm_rsqrt, 3)
    mul_17 = sum_4 * -0.5
    mul_18 = mul_17 * pow_3
    expand_2 = mul_18.expand(B, S, 16)
    div_2 = expand_2 / 16
    pow_4 = x
    mul_19 = pow_4 * 2.0
    mul_20 = div_2 * mul_19
    d_x = add_9 + mul_20
    return d_x


# ffn: used 1 times on this stage

def ffn_forward(params, x):
    """x [B, S, 16] -> add_2 [B, S, 16], saved."""
    (ffn_norm_w, ffn_gate_w, ffn_up_w, ffn_down_w, ffn_post_norm_w,) = params
    # models/norms.py:49
    ffn_norm_add = ffn_norm_w + 1.0
    # models/norms.py:50
    ffn_norm_pow = torch.pow(x, 2)
    ffn_norm_mean = ffn_norm_pow.mean([-1], keepdim=True)
    ffn_norm_add_2 = ffn_norm_mean + 1e-06
    ffn_norm_rsqrt = torch.rsqrt(ffn_norm_add_2)
    ffn_norm_mul = x * ffn_norm_rsqrt
    ffn_norm_mul_2 = ffn_norm_mul * ffn_norm_add
    # models/ffn.py:27
    ffn_gate_linear = kernels.linear(ffn_norm_mul_2, ffn_gate_w)
    ffn_gelu = F.gelu(ffn_gate_linear, approximate="tanh")
    ffn_up_linear = kernels.linear(ffn_norm_mul_2, ffn_up_w)
    ffn_mul = ffn_gelu * ffn_up_linear
    ffn_down_linear = kernels.linear(ffn_mul, ffn_down_w)
    # models/norms.py:49
    ffn_post_norm_add = ffn_post_norm_w + 1.0
    # models/norms.py:50
    ffn_post_norm_pow = torch.pow(ffn_down_linear, 2)
    ffn_post_norm_mean = ffn_post_norm_pow.mean([-1], keepdim=True)
    ffn_post_norm_add_2 = ffn_post_norm_mean + 1e-06
    ffn_post_norm_rsqrt = torch.rsqrt(ffn_post_norm_add_2)
    ffn_post_norm_mul = ffn_down_linear * ffn_post_norm_rsqrt
    ffn_post_norm_mul_2 = ffn_post_norm_mul * ffn_post_norm_add
    # models/decoder.py:36
    add_2 = x + ffn_post_norm_mul_2
    # saved for backward, a micro-batch: 24.4 KiB in 12 values
    saved = (
        x, ffn_norm_add, ffn_norm_rsqrt, ffn_norm_mul, ffn_norm_mul_2, ffn_gate_linear, ffn_gelu,
        ffn_up_linear, ffn_mul, ffn_down_linear, ffn_post_norm_add, ffn_post_norm_rsqrt,
        ffn_post_norm_mul,
    )
    return add_2, saved


def ffn_backward(params, saved, dy, grads):
    """Adds to grads; returns d_x [B, S, 16]."""
    (ffn_norm_w, ffn_gate_w, ffn_up_w, ffn_down_w, ffn_post_norm_w,) = params
    (
        x, ffn_norm_add, ffn_norm_rsqrt, ffn_norm_mul, ffn_norm_mul_2, ffn_gate_linear, ffn_gelu,
        ffn_up_linear, ffn_mul, ffn_down_linear, ffn_post_norm_add, ffn_post_norm_rsqrt,
        ffn_post_norm_mul,
    ) = saved
    (
        grad_ffn_norm_w, grad_ffn_gate_w, grad_ffn_up_w, grad_ffn_down_w, grad_ffn_post_norm_w,
    ) = grads
    # gradients
    mul = dy * ffn_post_norm_mul
    mul_2 = dy * ffn_post_norm_add
    sum = mul.sum([0, 1], keepdim=True)
    d_ffn_post_norm_w = sum.reshape(16)
    grad_ffn_post_norm_w.add_(d_ffn_post_norm_w)
    mul_3 = mul_2 * ffn_down_linear
    mul_4 = mul_2 * ffn_post_norm_rsqrt
    sum_2 = mul_3.sum([2], keepdim=True)
    pow = torch.pow(ffn_post_norm_rsqrt, 3)
    mul_5 = sum_2 * -0.5
    mul_6 = mul_5 * pow
    expand = mul_6.expand(B, S, 16)
    div = expand / 16
    pow_2 = ffn_down_linear
    mul_7 = pow_2 * 2.0
    mul_8 = div * mul_7
    add = mul_4 + mul_8
    linear_input_grad = kernels.linear_input_grad(add, ffn_down_w)
    kernels.add_linear_weight_grad(grad_ffn_down_w, add, ffn_mul)
    mul_9 = linear_input_grad * ffn_gelu
    mul_10 = linear_input_grad * ffn_up_linear
    linear_input_grad_2 = kernels.linear_input_grad(mul_9, ffn_up_w)
    kernels.add_linear_weight_grad(grad_ffn_up_w, mul_9, ffn_norm_mul_2)
    gelu_backward = torch.ops.aten.gelu_backward(mul_10, ffn_gate_linear, approximate='tanh')
    linear_input_grad_3 = kernels.linear_input_grad(gelu_backward, ffn_gate_w)
    kernels.add_linear_weight_grad(grad_ffn_gate_w, gelu_backward, ffn_norm_mul_2)
    add_3 = linear_input_grad_2 + linear_input_grad_3
    mul_11 = add_3 * ffn_norm_mul
    mul_12 = add_3 * ffn_norm_add
    sum_3 = mul_11.sum([0, 1], keepdim=True)
    d_ffn_norm_w = sum_3.reshape(16)
    grad_ffn_norm_w.add_(d_ffn_norm_w)
    mul_13 = mul_12 * x
    mul_14 = mul_12 * ffn_norm_rsqrt
    sum_4 = mul_13.sum([2], keepdim=True)
    add_4 = dy + mul_14
    pow_3 = torch.pow(ffn_norm_rsqrt, 3)
    mul_15 = sum_4 * -0.5
    mul_16 = mul_15 * pow_3
    expand_2 = mul_16.expand(B, S, 16)
    div_2 = expand_2 / 16
    pow_4 = x
    mul_17 = pow_4 * 2.0
    mul_18 = div_2 * mul_17
    d_x = add_4 + mul_18
    return d_x


# head: used 1 times on this stage

def head_forward(params, x, labels, denominator):
    """x [B, S, 16] -> loss_2 [], saved."""
    (norm_w, embed_w,) = params
    # models/norms.py:49
    norm_add = norm_w + 1.0
    # models/norms.py:50
    norm_pow = torch.pow(x, 2)
    norm_mean = norm_pow.mean([-1], keepdim=True)
    norm_add_2 = norm_mean + 1e-06
    norm_rsqrt = torch.rsqrt(norm_add_2)
    norm_mul = x * norm_rsqrt
    norm_mul_2 = norm_mul * norm_add
    # models/decoder.py:68
    loss_lse, loss_picked, loss_logits = kernels.linear_cross_entropy_keeping(
        norm_mul_2, embed_w, labels, softcap=30.0, start=0,
    )
    loss_nll = loss_lse - loss_picked
    loss_valid = labels != -100
    loss_masked = torch.full((), 0.0, dtype=torch.float32, device=DEVICE)
    loss_masked_2 = torch.where(loss_valid, loss_nll, loss_masked)
    loss_sum = loss_masked_2.sum()
    loss_2 = loss_sum / denominator
    # saved for backward, a micro-batch: 12.3 KiB in 8 values
    saved = (
        x, labels, denominator, norm_add, norm_rsqrt, norm_mul, norm_mul_2, loss_lse, loss_logits,
        loss_valid, loss_2,
    )
    return loss_2, saved


def head_backward(params, saved, dy, grads):
    """dy is the loss's own 1. Adds to grads; returns d_x [B, S, 16]."""
    (norm_w, embed_w,) = params
    (
        x, labels, denominator, norm_add, norm_rsqrt, norm_mul, norm_mul_2, loss_lse, loss_logits,
        loss_valid, loss_2,
    ) = saved
    (grad_norm_w, grad_embed_w,) = grads
    # gradients
    ones_like = torch.ones_like(loss_2)
    div = ones_like / denominator
    expand = div.expand(B, S)
    scalar_tensor = torch.full((), 0, dtype=torch.float32, device=DEVICE)
    where = torch.where(loss_valid, expand, scalar_tensor)
    neg = -where
    linear_cross_entropy_backward_dx = kernels.add_linear_cross_entropy_backward(
        grad_embed_w, where, neg, norm_mul_2, embed_w, labels, loss_lse, loss_logits, softcap=30.0,
        start=0,
    )
    mul = linear_cross_entropy_backward_dx * norm_mul
    mul_2 = linear_cross_entropy_backward_dx * norm_add
    sum = mul.sum([0, 1], keepdim=True)
    d_norm_w = sum.reshape(16)
    grad_norm_w.add_(d_norm_w)
    mul_3 = mul_2 * x
    mul_4 = mul_2 * norm_rsqrt
    sum_2 = mul_3.sum([2], keepdim=True)
    pow = torch.pow(norm_rsqrt, 3)
    mul_5 = sum_2 * -0.5
    mul_6 = mul_5 * pow
    expand_2 = mul_6.expand(B, S, 16)
    div_2 = expand_2 / 16
    pow_2 = x
    mul_7 = pow_2 * 2.0
    mul_8 = div_2 * mul_7
    d_x = mul_4 + mul_8
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
    "head": Piece(
        forward=head_forward,
        backward=head_backward,
        takes_x=True,
        context=(),
        data=("labels", "denominator"),
    ),
}

INSTANCES = (
    Instance(
        name="embed",
        piece="embed",
        params=("embed.weight",),
        buckets=("tied.embed.weight",),
        reduces=("tied.embed.weight",),
    ),
    Instance(
        name="layers.0.attention",
        piece="attention",
        params=(
            "layers.0.attention_norm.weight", "layers.0.attention.q.weight",
            "layers.0.attention.k.weight", "layers.0.attention.v.weight",
            "layers.0.attention.o.weight", "layers.0.attention_post_norm.weight",
        ),
        buckets=("layers.0.attention",),
        reduces=("layers.0.attention",),
    ),
    Instance(
        name="layers.0.ffn",
        piece="ffn",
        params=(
            "layers.0.ffn_norm.weight", "layers.0.ffn.gate.weight", "layers.0.ffn.up.weight",
            "layers.0.ffn.down.weight", "layers.0.ffn_post_norm.weight",
        ),
        buckets=("layers.0.ffn",),
        reduces=("layers.0.ffn",),
    ),
    Instance(
        name="head",
        piece="head",
        params=("norm.weight", "embed.weight",),
        buckets=("head", "tied.embed.weight"),
        reduces=("head",),
    ),
)

# What crosses the stage's borders: (local shape, dtype), None at the ends.
ENTRY = None
EXIT = None


def forward(run, microbatch, x):
    """One micro-batch through this stage: tokens in, loss out."""
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
