"""A gated recurrence over the sequence: linear attention, state-space scans, delta rules.

A tracer that wants it whole finds the core by its `semantic_op`, as those of attention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .norms import wide_dtype


class RecurrenceCore(nn.Module):
    """o_t = q_t S_t with S_t = P_t + k_t u_t, P_t = exp(g_t) S_(t-1), u_t = beta_t (v_t - k_t P_t);
    without `delta` u_t = beta_t v_t."""

    semantic_op = "recurrence"

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, delta: bool
    ) -> Tensor:
        """q k [B, S, H, K], v [B, S, H, V], g [B, S, H, K] or [B, S, H], beta [B, S, H] ->
        [B, S, H, V] in v's dtype.

        This body is the reference: a loop over tokens, in float32 or wider.
        """
        dtype = v.dtype
        q, k, v, g, beta = (x.to(wide_dtype(dtype)) for x in (q, k, v, g, beta))
        decay = (g if g.dim() == 4 else g.unsqueeze(-1)).exp()
        state, found = torch.zeros_like(k[:, 0].unsqueeze(-1) * v[:, 0].unsqueeze(-2)), []
        for t in range(v.shape[1]):
            state = decay[:, t].unsqueeze(-1) * state
            value = v[:, t]
            if delta:
                value = value - torch.einsum("bhk,bhkv->bhv", k[:, t], state)
            written = beta[:, t].unsqueeze(-1) * value
            state = state + k[:, t].unsqueeze(-1) * written.unsqueeze(-2)
            found.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
        return torch.stack(found, 1).to(dtype)
