"""The kernels of triton_attention.py as functions that compiled text calls as they stand.

Triton is imported by the first call. Shapes: see triton_attention.py.
"""

from torch import Tensor

from .attention_buffers import empty_rows, outputs
from .opaque import opaque


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    start: int,
) -> tuple[Tensor, Tensor]:
    from . import triton_attention as ours

    return ours.forward(q, k, v, ours.Rule(scale, causal, window, softcap, start))


def _attention_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lse: Tensor,
    along: Tensor,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    start: int,
) -> tuple[Tensor, Tensor, Tensor]:
    from . import triton_attention as ours

    rule = ours.Rule(scale, causal, window, softcap, start)
    return ours.backward(do, q, k, v, lse, along, rule)


_forward = opaque(_attention, lambda q, *rest: outputs(q))
_backward = opaque(
    _attention_backward,
    lambda do, q, k, v, *rest: (empty_rows(q), empty_rows(k), empty_rows(k)),
)


def triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    start: int = 0,
) -> tuple[Tensor, Tensor]:
    """(o, log-sum-exp) of half-precision operands on CUDA."""
    return _forward(q, k, v, scale, causal, window, softcap, start)


def triton_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    start: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) of `triton`. The sums of do * o stay outside of the op, in compiled text."""
    along = (do.float() * o.float()).sum(-1)
    return _backward(do, q, k, v, lse, along, scale, causal, window, softcap, start)
