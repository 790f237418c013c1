"""Experts: each row times the matrix of the expert that it is sent to.

A tracer that wants the product whole finds the cores by their `semantic_op`, as those of attention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ExpertCore(nn.Module):
    """y[n, k] = w[ids[n, k]] @ x[n, k]; 0 where ids names none of the experts."""

    semantic_op = "expert_linear"

    def forward(self, x: Tensor, w: Tensor, ids: Tensor, transposed: bool) -> Tensor:
        """x [N, K, I], or [N, I] for all K choices of a token; ids [N, K]; w [E, O, I], or
        [E, I, O] where `transposed` -> [N, K, O].

        This body is the reference: a matrix of its own for every row.
        """
        rows = x if x.dim() > ids.dim() else x.unsqueeze(-2)
        matrices = (w if transposed else w.transpose(1, 2))[ids.clamp(max=len(w) - 1)]
        y = (rows.unsqueeze(-2) @ matrices).squeeze(-2)
        return torch.where((ids < len(w)).unsqueeze(-1), y, 0.0)


def apply_experts(
    module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Apply a layer of experts of `transformers`, which is asked by the library's own words.

    hidden_states [N, I], top_k_index and top_k_weights [N, K] -> [N, I]. The module says by its
    attributes how its weights lie; it gets an ExpertCore as `core` at its first call.
    """
    core = getattr(module, "core", None)
    if core is None:
        core = module.core = ExpertCore()
    name = "gate_up_proj" if module.has_gate else "up_proj"
    up = _linear(module, core, hidden_states, name, top_k_index)
    gated = module._apply_gate(up) if module.has_gate else module.act_fn(up)  # type: ignore[operator]
    y = _linear(module, core, gated, "down_proj", top_k_index)
    if getattr(module, "has_post_expert_norm", False):
        y = module.post_expert_norm(y)  # type: ignore[operator]
    return (y * top_k_weights.unsqueeze(-1)).sum(-2).to(hidden_states.dtype)


def _linear(module: nn.Module, core: nn.Module, x: Tensor, name: str, ids: Tensor) -> Tensor:
    y = core(x, getattr(module, name), ids, bool(module.is_transposed))
    if not module.has_bias:
        return y
    return y + nn.functional.embedding(ids, getattr(module, f"{name}_bias"))
