"""The gated recurrence, token by token: ir/capture/recurrence.py says what it computes.

On CUDA the kernels of triton_recurrence.py go through the tokens, in float32. Elsewhere, and in
float64, ops of torch do. Backward makes the states again: those at every chunk's beginning in one
pass, the others of a chunk when it comes. So a chunk of states is what it holds, and forward keeps
nothing. Legend: B batch, H heads, K rows and V columns of a state; a step's operands have no dim of
S.
"""

from collections.abc import Iterator
from functools import lru_cache, partial
from importlib.util import find_spec

import torch
from torch import Tensor

from .agreement import agree
from .opaque import opaque

_CHUNK = 32  # tokens whose states backward holds
_TRITON = find_spec("triton") is not None


def _fused(v: Tensor) -> bool:
    """Whether the kernels of triton_recurrence.py take these values."""
    return _TRITON and v.is_cuda and v.dtype != torch.float64 and _equal_here(v.device)


@lru_cache
def _equal_here(device: torch.device) -> bool:
    """Whether the kernels of triton_recurrence.py compute the formulas here, else warn."""
    return agree("recurrences are", device, partial(_compare, device))


def _compare(device: torch.device) -> None:
    from . import triton_recurrence as ours

    for rows, columns, by_row in ((16, 1, True), (64, 80, False)):
        k, v = (torch.linspace(-1, 1, 80 * n, device=device) for n in (rows, columns))
        k, v = k.view(1, 40, 2, rows) / rows**0.5, v.view(1, 40, 2, columns)
        beta = torch.linspace(0, 1, 80, device=device).view(1, 40, 2)
        given = k.flip(3), k, v, -k.abs() if by_row else -beta, beta, True
        torch.testing.assert_close(ours.forward(*given), _loop(*given))
        torch.testing.assert_close(ours.backward(v, *given), _loop_backward(v, *given))


def _recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, delta: bool) -> Tensor:
    if not _fused(v):
        return _loop(q, k, v, g, beta, delta)
    from . import triton_recurrence as ours

    return ours.forward(q, k, v, g, beta, delta)


def _recurrence_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, delta: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if not _fused(v):
        return _loop_backward(do, q, k, v, g, beta, delta)
    from . import triton_recurrence as ours

    return ours.backward(do, q, k, v, g, beta, delta)


def _loop(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, delta: bool) -> Tensor:
    steps = _Steps(q, k, v, g, beta, delta)
    out, state = torch.empty_like(v, dtype=steps.dtype), steps.zero()
    for t in range(v.shape[1]):
        _, _, state = steps.forward(t, state)
        out[:, t] = _row_times(steps.q[:, t], state)
    return out.to(v.dtype)


def _loop_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, delta: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    steps = _Steps(q, k, v, g, beta, delta)
    do = do.to(steps.dtype)
    grads = [torch.empty(x.shape, dtype=steps.dtype, device=x.device) for x in (q, k, v, g, beta)]
    dstate = steps.zero()
    for first, before in reversed(list(steps.chunks())):
        made = steps.states(first, before)
        for t in reversed(range(first, first + len(made))):
            dstate = steps.backward(t, made[t - first], do[:, t], dstate, grads)
    dq, dk, dv, dg, dbeta = (x.to(y.dtype) for x, y in zip(grads, (q, k, v, g, beta), strict=True))
    return dq, dk, dv, dg, dbeta


class _Steps:
    """The operands in float32 at least, and the step of a token forward and back."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, delta: bool
    ) -> None:
        self.dtype = torch.promote_types(v.dtype, torch.float32)
        self.q, self.k, self.v, self.beta = (x.to(self.dtype) for x in (q, k, v, beta))
        g = g.to(self.dtype)
        self.by_row = g.dim() == 4
        self.decay = (
            (g if self.by_row else g.unsqueeze(-1)).exp().unsqueeze(-1)
        )  # [B, S, H, K|1, 1]
        self.delta = delta

    def zero(self) -> Tensor:
        batch, _, heads, rows = self.k.shape
        return self.k.new_zeros(batch, heads, rows, self.v.shape[3])

    def forward(self, t: int, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The state before a token -> (P, the value that beta multiplies, the state after it)."""
        decayed = self.decay[:, t] * state
        value = self.v[:, t]
        if self.delta:
            value = value - _row_times(self.k[:, t], decayed)
        written = self.beta[:, t, :, None] * value
        return decayed, value, decayed + self.k[:, t].unsqueeze(-1) * written.unsqueeze(-2)

    def chunks(self) -> Iterator[tuple[int, Tensor]]:
        """(first token, the state before it) of each chunk."""
        state, length = self.zero(), self.v.shape[1]
        for t in range(length):
            if t % _CHUNK == 0:
                yield t, state
            state = self.forward(t, state)[2]

    def states(self, first: int, state: Tensor) -> list[Tensor]:
        """The states before the tokens of a chunk."""
        found = []
        for t in range(first, min(first + _CHUNK, self.v.shape[1])):
            found.append(state)
            state = self.forward(t, state)[2]
        return found

    def backward(
        self, t: int, before: Tensor, do: Tensor, dstate: Tensor, grads: list[Tensor]
    ) -> Tensor:
        """Write a token's gradients; return that of the state before it. dstate: of the state after
        it, from later tokens."""
        dq, dk, dv, dg, dbeta = grads
        decayed, value, after = self.forward(t, before)
        q, k, beta = self.q[:, t], self.k[:, t], self.beta[:, t, :, None]
        dstate = dstate + q.unsqueeze(-1) * do.unsqueeze(-2)
        dq[:, t] = _times_column(after, do)
        dk[:, t] = _times_column(dstate, beta * value)
        dwritten = _row_times(k, dstate)
        dbeta[:, t] = (dwritten * value).sum(-1)
        dvalue = beta * dwritten
        dv[:, t] = dvalue
        if self.delta:
            dk[:, t] -= _times_column(decayed, dvalue)
            dstate = dstate - k.unsqueeze(-1) * dvalue.unsqueeze(-2)
        ddecay = (dstate * decayed).sum(-1)
        dg[:, t] = ddecay if self.by_row else ddecay.sum(-1)
        return self.decay[:, t] * dstate


def _row_times(row: Tensor, state: Tensor) -> Tensor:
    """row [B, H, K], state [B, H, K, V] -> [B, H, V]."""
    return torch.matmul(row.unsqueeze(-2), state).squeeze(-2)


def _times_column(state: Tensor, column: Tensor) -> Tensor:
    """state [B, H, K, V], column [B, H, V] -> [B, H, K]."""
    return torch.matmul(state, column.unsqueeze(-1)).squeeze(-1)


def _fake(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, delta: bool) -> Tensor:
    return torch.empty_like(v)


def _fake_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, delta: bool
) -> tuple[Tensor, ...]:
    return tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v, g, beta))


_run = opaque(_recurrence, _fake)
_run_backward = opaque(_recurrence_backward, _fake_backward)


def recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, delta: bool) -> Tensor:
    """q k [B, S, H, K], v [B, S, H, V], g [B, S, H, K] or [B, S, H], beta [B, S, H] -> as v.

    Opaque, as a compiler would unroll the tokens.
    """
    return _run(q, k, v, g, beta, delta)


def recurrence_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, delta: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """do [B, S, H, V] -> gradients of q, k, v, g, beta."""
    return _run_backward(do, q, k, v, g, beta, delta)
