"""Kernels that classes of `transformers` call by name, each on our own recurrence or in plain ops.

The library marks a function of a modeling file with the name of a kernel that may take its place:
`use_kernel_func_from_hub_with_fallback(name, package)`. Its signature is that of the kernel.
Classes call the function as a global of their file, so that for the time of a forward another one
can stand there. The name is read from the closure of the mark, which is private to the library:
here alone, and a test tells when it moves.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .norms import wide_dtype
from .recurrence import RecurrenceCore

Scan = Callable[..., Any]
_NAME = "func_name"


@contextmanager
def kernels_of(model: nn.Module, core: RecurrenceCore) -> Iterator[None]:
    """Put our functions in the place of the kernels that the files of a model's classes name, and
    of what they differentiate by themselves."""
    files = {sys.modules[type(part).__module__] for part in model.modules()}
    places = [
        (vars(file), key, _OURS[name](core)) for file in files for key, name in _kernels_in(file)
    ]
    places += [
        (vars(file), key, made(file))
        for file in files
        for key, made in _DIFFERENTIATED.items()
        if key in vars(file)
    ]
    kept = [(names, key, names[key]) for names, key, _ in places]
    for names, key, function in places:
        names[key] = function
    try:
        yield
    finally:
        for names, key, function in kept:
            names[key] = function


def _kernels_in(file: object) -> list[tuple[str, str]]:
    """(name of the global, name of the kernel) of the kernels that we have in a module; of a
    function that chooses the kernel by itself, its own name twice."""
    marked = [(k, f) for k, f in vars(file).items() if inspect.isfunction(f) and f.__closure__]
    named = [(k, inspect.getclosurevars(f).nonlocals.get(_NAME)) for k, f in marked]
    own = [(key, key) for key in _CHOOSING if inspect.isfunction(vars(file).get(key))]
    return [(key, name) for key, name in named if name in _OURS] + own


def _convolution(_: RecurrenceCore) -> Scan:
    def causal_conv1d(
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **__: Any,
    ) -> Tensor:
        """hidden_states [B, D, S], weight [D, W] -> [B, D, S]: a sum of W shifted products."""
        x, (batch, width, seq) = hidden_states.to(weight.dtype), hidden_states.shape
        taps = weight.shape[-1]
        padded = torch.cat([x.new_zeros(batch, width, taps - 1), x], dim=-1)
        y = sum(padded[..., tap : tap + seq] * weight[:, tap, None] for tap in range(taps))
        assert isinstance(y, Tensor)
        y = y if bias is None else y + bias[:, None]
        return _activated(y, activation).to(hidden_states.dtype)

    return causal_conv1d


def _activated(x: Tensor, activation: str | None) -> Tensor:
    if activation is None:
        return x
    from transformers.activations import ACT2FN

    return ACT2FN[activation](x)


def _chunk_scan(core: RecurrenceCore) -> Scan:
    def chunk_scan(
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        chunk_size: int,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        initial_states: Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        return_final_states: bool = False,
        **_: Any,
    ) -> Any:
        """hidden_states [B, S, H, P], dt [B, S, H], A [H], B and C [B, S, G, N] -> [B, S, H, P]."""
        _refuse_state(initial_states)
        dt = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
        dt = F.softplus(dt) if dt_softplus else dt
        dt = torch.clamp(dt, min=dt_limit[0], max=dt_limit[1])
        x, heads = hidden_states.to(wide_dtype(hidden_states.dtype)), hidden_states.shape[2]
        k, q = (y.to(x.dtype).repeat_interleave(heads // y.shape[2], dim=2) for y in (B, C))
        y = core(q, k, x, A.to(x.dtype) * dt.to(x.dtype), dt.to(x.dtype), False)
        y = y if D is None else y + D[..., None] * x
        return (y, None) if return_final_states else y

    return chunk_scan


def _selective_scan(core: RecurrenceCore) -> Scan:
    def selective_scan(
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        z: Tensor | None = None,
        delta_bias: Tensor | None = None,
        delta_softplus: bool = False,
        return_last_state: bool = False,
        **_: Any,
    ) -> Any:
        """hidden_states, dt, z [B, D, S], A [D, N], B and C [B, N, S] -> [B, D, S]."""
        dt = dt if delta_bias is None else dt + delta_bias.to(dt.dtype)[..., None]
        dt = (F.softplus(dt) if delta_softplus else dt).transpose(1, 2)
        x = hidden_states.transpose(1, 2)
        channels = (-1, -1, x.shape[2], -1)
        k, q = (y.transpose(1, 2).unsqueeze(2).expand(channels) for y in (B, C))
        y = core(q, k, x.unsqueeze(-1), A * dt.unsqueeze(-1), dt, False)
        y = y.squeeze(-1).transpose(1, 2).to(hidden_states.dtype)
        y = y if D is None else y + hidden_states * D[:, None]
        y = y if z is None else y * F.silu(z)
        return (y, None) if return_last_state else y

    return selective_scan


def _delta_rule(core: RecurrenceCore) -> Scan:
    def delta_rule(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        chunk_size: int = 64,
        initial_state: Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """query and key [B, S, G, K], value [B, S, H, V], g [B, S, H] or by row, beta [B, S, H]."""
        _refuse_state(initial_state)
        wide, heads = wide_dtype(query.dtype), value.shape[2]
        q, k = (x.repeat_interleave(heads // x.shape[2], dim=2).to(wide) for x in (query, key))
        if use_qk_l2norm_in_kernel:
            q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
        q = q * q.shape[-1] ** -0.5
        return core(q, k, value.to(wide), g.to(wide), beta.to(wide), True).to(query.dtype), None

    return delta_rule


def _wkv(core: RecurrenceCore) -> Scan:
    def wkv(
        time_decay: Tensor,
        time_first: Tensor,
        key: Tensor,
        value: Tensor,
        state: Any = None,
        return_state: bool = False,
    ) -> tuple[Tensor, None]:
        """RWKV-4's mean of values (Peng et al. 2023, arXiv 2305.13048, equation 16).

        time_decay and time_first [C], key and value [B, S, C] -> [B, S, C]. Numerator and
        denominator are one state [1, 2] a channel, of the tokens before, divided by exp of a peak
        that moves with the tokens: its own step joins the decay, and the denominator stays near 1.
        """
        _refuse_state(state)
        wide = wide_dtype(key.dtype)
        k, v, decay = key.to(wide), value.to(wide), time_decay.to(wide).exp()
        now, one = k + time_first.to(wide), torch.ones_like(k)
        last = torch.cat([k[:, :1], k[:, :-1]], 1)
        peak = _peak(last.detach(), decay.detach())
        seen = F.pad(torch.stack([v, one], -1), (0, 0, 0, 0, 1, 0))[:, :-1]
        fall = torch.cat([peak[:, :1], peak[:, :-1]], 1) - peak - decay
        weight = (last - peak).exp().unsqueeze(-1)
        past = core(one.unsqueeze(-1), one.unsqueeze(-1), weight * seen, fall, one, False)
        peak = torch.cat([now.detach()[:, :1], peak[:, 1:]], 1)
        top = torch.maximum(peak, now.detach())
        old, new = (peak - top).exp().unsqueeze(-1), (now - top).exp().unsqueeze(-1)
        both = old * past + new * torch.stack([v, one], -1)
        return (both[..., 0] / both[..., 1]).to(key.dtype), None

    return wkv


def _peak(last: Tensor, decay: Tensor) -> Tensor:
    """Return the logarithm of a sum: of exp of each key of `last` so far, less `decay` a token
    since. last [B, S, C], decay [C] -> [B, S, C]."""
    since = torch.arange(last.shape[1], device=last.device).unsqueeze(-1) * decay
    return torch.logcumsumexp(last + since, 1) - since


def _bloom_gelu(file: Any) -> type:
    class Gelu:
        """Bloom's function with a backward of its own, in ops: the value, and beside it a 0 whose
        gradient is the slope's."""

        @staticmethod
        def apply(x: Tensor) -> Tensor:
            fixed = x.detach()
            slope = file.bloom_gelu_back(torch.ones_like(fixed), (fixed,))
            return file.bloom_gelu_forward(fixed) + (x - fixed) * slope

    return Gelu


def _refuse_state(state: Tensor | None) -> None:
    assert state is None, "a forward without a cache begins with no state"


_OURS: dict[str, Callable[[RecurrenceCore], Scan]] = {
    "causal_conv1d_fn": _convolution,
    "mamba_chunk_scan_combined": _chunk_scan,
    "selective_scan_fn": _selective_scan,
    "chunk_gated_delta_rule": _delta_rule,
    "chunk_kda": _delta_rule,
    "rwkv_linear_attention": _wkv,
}
_CHOOSING = ("rwkv_linear_attention",)
# What stands for a torch.autograd.Function of a file, by its name.
_DIFFERENTIATED: dict[str, Callable[[Any], type]] = {"GeLUFunction": _bloom_gelu}
