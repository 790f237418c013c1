"""Stage 2 of 4, on pp rank 1: golden-llama, layers.0.ffn to layers.0.ffn.

Mesh pp=2 dp=1 tp=1; micro-batches: 4 of 1 rows a
data-parallel rank; ZeRO 0; recompute cheap; zbv.
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
    return {}


def norm(x, w):
    # models/norms.py:35
    pow_ = torch.pow(x, 2)
    mean = pow_.mean([-1], keepdim=True)
    add = mean + 1e-05
    rsqrt = torch.rsqrt(add)
    mul = x * rsqrt
    return w * mul


def norm_with_rsqrt_mul(x, w):
    # models/norms.py:35
    pow_ = torch.pow(x, 2)
    mean = pow_.mean([-1], keepdim=True)
    add = mean + 1e-05
    rsqrt = torch.rsqrt(add)
    mul = x * rsqrt
    mul_2 = w * mul
    return mul_2, rsqrt, mul


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


def ffn_input_grad(params, saved, dy):
    """Returns d_x [B, S, 16], handed."""
    (ffn_norm_w, ffn_gate_w, ffn_up_w, ffn_down_w,) = params
    (x, ffn_gate_linear, ffn_up_linear,) = saved
    # models/ffn.py:27
    d_ffn_mul = kernels.linear_input_grad(dy, ffn_down_w)
    # recompute: models/ffn.py:27
    ffn_silu = F.silu(ffn_gate_linear)
    ffn_mul = ffn_silu * ffn_up_linear
    # models/ffn.py:27
    d_ffn_up_linear = d_ffn_mul * ffn_silu
    d_ffn_silu = d_ffn_mul * ffn_up_linear
    d_ffn_norm_mul_2_from_up_linear = kernels.linear_input_grad(d_ffn_up_linear, ffn_up_w)
    # recompute: models/norms.py:35
    ffn_norm_mul_2, ffn_norm_rsqrt, ffn_norm_mul = norm_with_rsqrt_mul(x, ffn_norm_w)
    # models/ffn.py:27
    d_ffn_gate_linear = torch.ops.aten.silu_backward(d_ffn_silu, ffn_gate_linear)
    d_ffn_norm_mul_2_from_gate_linear = kernels.linear_input_grad(d_ffn_gate_linear, ffn_gate_w)
    d_ffn_norm_mul_2 = d_ffn_norm_mul_2_from_up_linear + d_ffn_norm_mul_2_from_gate_linear
    # models/norms.py:35
    d_ffn_norm_mul = d_ffn_norm_mul_2 * ffn_norm_w
    d_ffn_norm_w_mul = d_ffn_norm_mul_2 * ffn_norm_mul
    d_ffn_norm_w_sum = d_ffn_norm_w_mul.sum([0, 1], keepdim=True)
    d_ffn_norm_w = d_ffn_norm_w_sum.reshape(16)
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
    # handed to weight_grad
    handed = (dy, ffn_mul, d_ffn_up_linear, ffn_norm_mul_2, d_ffn_gate_linear, d_ffn_norm_w,)
    return d_x, handed


def ffn_weight_grad(handed, grads):
    """Adds to grads."""
    (dy, ffn_mul, d_ffn_up_linear, ffn_norm_mul_2, d_ffn_gate_linear, d_ffn_norm_w,) = handed
    (grad_ffn_norm_w, grad_ffn_gate_w, grad_ffn_up_w, grad_ffn_down_w,) = grads
    grad_ffn_norm_w.add_(d_ffn_norm_w)
    # models/ffn.py:27
    kernels.add_linear_weight_grad(grad_ffn_down_w, dy, ffn_mul)
    kernels.add_linear_weight_grad(grad_ffn_up_w, d_ffn_up_linear, ffn_norm_mul_2)
    kernels.add_linear_weight_grad(grad_ffn_gate_w, d_ffn_gate_linear, ffn_norm_mul_2)


PIECES = {
    "ffn": Piece(
        forward=ffn_forward,
        input_grad=ffn_input_grad,
        weight_grad=ffn_weight_grad,
        takes_x=True,
        context=(),
        data=(),
    ),
}

INSTANCES = (
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
ENTRY = ((B, S, 16), torch.float32)
EXIT = ((B, S, 16), torch.float32)


def forward(run, microbatch, x):
    """One micro-batch through this stage: from stage 1, to stage 3."""
    for index, item in enumerate(INSTANCES):
        run.prefetch(index + 1)  # gather the next parameters behind this compute
        piece = run.pieces[item.piece]
        operands = run.operands(index, microbatch)
        inputs = (x, *operands) if piece.takes_x else operands
        x, saved = piece.forward(run.params(index), *inputs)
        run.keep(index, microbatch, saved)
        run.release(index)
    return x


def input_grad(run, microbatch, dy):
    """The same micro-batch back to the stage's input; what weight_grad needs is handed to it."""
    for index in reversed(range(len(INSTANCES))):
        run.prefetch(index - 1)
        piece = run.pieces[INSTANCES[index].piece]
        saved = run.saved(index, microbatch)
        if piece.backward is not None:  # it makes all gradients at once
            dy = piece.backward(run.params(index), saved, dy, run.grads(index))
            run.reduce(index)
        else:
            dy, handed = piece.input_grad(run.params(index), saved, dy)
            run.hand(index, microbatch, handed)
        run.release(index)
    return dy


def weight_grad(run, microbatch):
    """Gradients of the weights, added into buckets and reduced behind compute."""
    for index in reversed(range(len(INSTANCES))):
        piece = run.pieces[INSTANCES[index].piece]
        if piece.weight_grad is not None:
            piece.weight_grad(run.handed(index, microbatch), run.grads(index))
            run.reduce(index)
