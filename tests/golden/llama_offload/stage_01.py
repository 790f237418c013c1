"""Stage 1 of 2, on pp rank 1: golden-llama, head to head.

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
    return {}


def norm(x, w):
    # models/norms.py:35
    pow_ = torch.pow(x, 2)
    mean = pow_.mean([-1], keepdim=True)
    add = mean + 1e-05
    rsqrt = torch.rsqrt(add)
    mul = x * rsqrt
    return w * mul


def loss(lse, picked, labels, denominator):
    # models/decoder.py:71
    nll = lse - picked
    valid = labels != -100
    masked = torch.full((), 0.0, dtype=torch.float32, device=DEVICE)
    masked_2 = torch.where(valid, nll, masked)
    sum_ = masked_2.sum()
    return sum_ / denominator


def loss_with_valid(lse, picked, labels, denominator):
    # models/decoder.py:71
    nll = lse - picked
    valid = labels != -100
    masked = torch.full((), 0.0, dtype=torch.float32, device=DEVICE)
    masked_2 = torch.where(valid, nll, masked)
    sum_ = masked_2.sum()
    result = sum_ / denominator
    return result, valid


def norm_with_rsqrt_mul(x, w):
    # models/norms.py:35
    pow_ = torch.pow(x, 2)
    mean = pow_.mean([-1], keepdim=True)
    add = mean + 1e-05
    rsqrt = torch.rsqrt(add)
    mul = x * rsqrt
    mul_2 = w * mul
    return mul_2, rsqrt, mul


# head: used once on this stage

def head_forward(params, x, labels, denominator):
    """x [B, S, 16] -> loss_2 [], saved."""
    (norm_w, lm_head_w,) = params
    # models/norms.py:35
    norm_mul_2 = norm(x, norm_w)
    # models/decoder.py:71
    loss_lse, loss_picked = kernels.linear_cross_entropy(
        norm_mul_2, lm_head_w, labels, softcap=0.0, start=0,
    )
    loss_2 = loss(loss_lse, loss_picked, labels, denominator)
    # saved for backward, a micro-batch: 0.1 KiB in 2 values
    # in the host's memory meanwhile: 0.5 KiB in x, loss_picked
    saved = (x, labels, denominator, loss_lse, loss_picked,)
    return loss_2, saved


def head_backward(params, saved, dy, grads):
    """dy is the loss's own 1. Adds to grads; returns d_x [B, S, 16]."""
    (norm_w, lm_head_w,) = params
    (x, labels, denominator, loss_lse, loss_picked,) = saved
    (grad_norm_w, grad_lm_head_w,) = grads
    # recompute: models/decoder.py:71
    loss_2, loss_valid = loss_with_valid(loss_lse, loss_picked, labels, denominator)
    # models/decoder.py:71
    d_loss_2 = torch.ones_like(loss_2)
    d_loss_sum = d_loss_2 / denominator
    d_loss_masked_2 = d_loss_sum.expand(B, S)
    d_loss_nll_scalar_tensor = torch.full((), 0, dtype=torch.float32, device=DEVICE)
    d_loss_nll = torch.where(loss_valid, d_loss_masked_2, d_loss_nll_scalar_tensor)
    d_loss_picked = -d_loss_nll
    # recompute: models/norms.py:35
    norm_mul_2, norm_rsqrt, norm_mul = norm_with_rsqrt_mul(x, norm_w)
    # models/decoder.py:71
    d_norm_mul_2 = kernels.add_linear_cross_entropy_backward(
        grad_lm_head_w, d_loss_nll, d_loss_picked, norm_mul_2, lm_head_w, labels, loss_lse,
        softcap=0.0, start=0,
    )
    # models/norms.py:35
    d_norm_mul = d_norm_mul_2 * norm_w
    d_norm_w_mul = d_norm_mul_2 * norm_mul
    d_norm_w_sum = d_norm_w_mul.sum([0, 1], keepdim=True)
    d_norm_w = d_norm_w_sum.reshape(16)
    grad_norm_w.add_(d_norm_w)
    d_norm_rsqrt_mul = d_norm_mul * x
    d_x_from_norm_mul = d_norm_mul * norm_rsqrt
    d_norm_rsqrt = d_norm_rsqrt_mul.sum([2], keepdim=True)
    d_norm_add_pow = torch.pow(norm_rsqrt, 3)
    d_norm_add_mul = d_norm_rsqrt * -0.5
    d_norm_add = d_norm_add_mul * d_norm_add_pow
    d_norm_pow_expand = d_norm_add.expand(B, S, 16)
    d_norm_pow = d_norm_pow_expand / 16
    d_x_from_norm_pow_mul = x * 2.0
    d_x_from_norm_pow = d_norm_pow * d_x_from_norm_pow_mul
    d_x = d_x_from_norm_mul + d_x_from_norm_pow
    return d_x


PIECES = {
    "head": Piece(
        forward=head_forward,
        backward=head_backward,
        takes_x=True,
        context=(),
        data=("labels", "denominator"),
        offloads=(0, 4,),
    ),
}

INSTANCES = (
    Instance(
        name="head",
        piece="head",
        params=("norm.weight", "lm_head.weight",),
        buckets=("head",),
        reduces=("head",),
    ),
)

# What crosses the stage's borders: (local shape, dtype), None at the ends.
ENTRY = ((B, S, 16), torch.float32)
EXIT = None


def forward(run, microbatch, x):
    """One micro-batch through this stage: from stage 0, loss out."""
    for index, item in enumerate(INSTANCES):
        run.prefetch(index + 1)  # gather the next parameters behind this compute
        piece = run.pieces[item.piece]
        operands = run.operands(index, microbatch)
        inputs = (x, *operands) if piece.takes_x else operands
        x, saved = piece.forward(run.params(index), *inputs)
        run.keep(index, microbatch, saved)
        run.offload(index, microbatch)  # to the host, behind the next forwards
        run.release(index)
    return x


def backward(run, microbatch, dy):
    """The same micro-batch back; gradients are added into buckets and reduced behind compute."""
    for index in reversed(range(len(INSTANCES))):
        run.prefetch(index - 1)
        piece = run.pieces[INSTANCES[index].piece]
        saved = run.saved(index, microbatch)
        run.fetch(index, microbatch)  # the next ones' back from the host, behind this backward
        dy = piece.backward(run.params(index), saved, dy, run.grads(index))
        run.release(index)
        run.reduce(index)
    return dy
