"""AdamW as one Triton kernel over flat tensors: reads each element of weights, gradient and moments
once, scales the gradient on the way, and writes weights and moments.

Arithmetic is in float32 whatever is stored, in the order of torch's fused step.
"""

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _adamw_kernel(  # type: ignore[no-untyped-def]
    weights,
    grad,
    exp_avg,
    exp_avg_sq,
    count,
    scale,
    kept,
    beta1,
    beta2,
    rest1,
    rest2,
    step_size,
    root,
    eps,
    BLOCK: tl.constexpr,
):
    """Program b updates block b."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    w = tl.load(weights + at, mask=inside).to(tl.float32)
    g = tl.load(grad + at, mask=inside).to(tl.float32) * scale
    m = beta1 * tl.load(exp_avg + at, mask=inside).to(tl.float32) + rest1 * g
    v = beta2 * tl.load(exp_avg_sq + at, mask=inside).to(tl.float32) + rest2 * g * g
    w = w * kept - step_size * m / (tl.sqrt(v) / root + eps)
    tl.store(weights + at, w.to(weights.dtype.element_ty), mask=inside)
    tl.store(exp_avg + at, m.to(exp_avg.dtype.element_ty), mask=inside)
    tl.store(exp_avg_sq + at, v.to(exp_avg_sq.dtype.element_ty), mask=inside)


def adamw_(
    weights: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    scale: float,
    lr: float,
    decay: float,
    betas: tuple[float, float],
    eps: float,
    count: int,
) -> None:
    """Update weights and moments in place by scale * grad; all flat [n], contiguous, bfloat16 or
    float32. count: updates up to and with this one."""
    numel, (beta1, beta2) = weights.numel(), betas
    if numel == 0:
        return
    _adamw_kernel[(triton.cdiv(numel, _BLOCK),)](
        weights,
        grad,
        exp_avg,
        exp_avg_sq,
        numel,
        scale,
        1.0 - lr * decay,
        beta1,
        beta2,
        1.0 - beta1,
        1.0 - beta2,
        lr / (1.0 - beta1**count),
        (1.0 - beta2**count) ** 0.5,
        eps,
        BLOCK=_BLOCK,
    )
