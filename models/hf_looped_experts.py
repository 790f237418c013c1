"""Experts that a stock class goes through in a loop of its own.

The loop goes by which experts any token chose, which no graph can. Where experts are modules, the
forward of the first one runs once for all tokens in its place, each of its linear layers with the
weights of all experts. Where their weights are packed, a layer's own words say how: those of DBRX,
and of LongCat-Flash, some experts of which hand on their tokens as they are (Meituan 2025, arXiv
2509.01322, section 2.1).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from .experts import ExpertCore

_ARGUMENTS = ["hidden_states", "selected_experts", "routing_weights"]
_GLU = ("w1", "v1", "w2", "activation_fn")
_WITH_IDENTITIES = ("num_routed_experts", "identity_expert", "gate_up_proj", "down_proj", "act_fn")


def loops_taken_over(model: nn.Module) -> None:
    """Give our forward to the layers of a model that loop over experts."""
    for layer in model.modules():
        if (forward := _forward_of(layer)) is not None:
            layer.core = core = ExpertCore()
            layer.forward = partial(forward, core)


def _forward_of(layer: nn.Module) -> Callable[..., Tensor] | None:
    """Return what takes the place of a layer's forward, but for the core."""
    if isinstance(layer, nn.ModuleDict):
        return partial(_of_modules, list(layer.values())) if _loops(layer) else None
    if all(hasattr(layer, name) for name in _WITH_IDENTITIES):
        return partial(_beside_identities, layer)
    if all(hasattr(getattr(layer, "mlp", None), name) for name in _GLU):
        return partial(_of_packed_rows, layer)
    return None


def _loops(layer: nn.ModuleDict) -> bool:
    names = [f"expert_{i}" for i in range(len(layer))]
    asked = list(inspect.signature(layer.forward).parameters)
    return bool(names) and list(layer) == names and asked == _ARGUMENTS


def _of_packed_rows(
    layer: Any,
    core: ExpertCore,
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
) -> Tensor:
    """hidden_states [..., I], top_k_index and top_k_weights [N, K] -> [..., I]; weights [E F, I],
    an expert's F rows behind each other."""
    glu, size = layer.mlp, (layer.num_experts, layer.ffn_hidden_size, layer.hidden_size)
    x = hidden_states.reshape(-1, layer.hidden_size)
    gate, up = (core(x, w.view(size), top_k_index, False) for w in (glu.w1, glu.v1))
    y = core(glu.activation_fn(gate) * up, glu.w2.view(size), top_k_index, True)
    return (y * top_k_weights.unsqueeze(-1)).sum(-2).view_as(hidden_states)


def _beside_identities(
    layer: Any, core: ExpertCore, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """hidden_states [N, I], top_k_index and top_k_weights [N, K] -> [N, I]; an index past the
    routed experts is that of an identity."""
    experts: int = layer.num_routed_experts
    up = core(hidden_states, layer.gate_up_proj[:experts], top_k_index, False)
    gate, up = up.chunk(2, dim=-1)
    y = core(layer.act_fn(gate) * up, layer.down_proj, top_k_index, False)
    y = torch.where((top_k_index < experts).unsqueeze(-1), y, hidden_states.unsqueeze(-2))
    return (y * top_k_weights.unsqueeze(-1)).sum(-2).to(hidden_states.dtype)


def _of_modules(
    experts: list[nn.Module],
    core: ExpertCore,
    hidden_states: Tensor,
    selected_experts: Tensor,
    routing_weights: Tensor,
) -> Tensor:
    """hidden_states [N, I], selected_experts [N, 1, E], 1 for the chosen one, routing_weights
    [N, 1] -> [N, I]; 0 for a token that no expert takes."""
    none = selected_experts.sum(-1) == 0
    ids = torch.where(none, len(experts), selected_experts.argmax(-1))
    with _of_all(experts, core, ids):
        y = experts[0](hidden_states)
    return (y * routing_weights.unsqueeze(-1)).sum(-2).to(hidden_states.dtype)


@contextmanager
def _of_all(experts: list[nn.Module], core: ExpertCore, ids: Tensor) -> Iterator[None]:
    """Let each linear layer of the first expert use that of the expert in `ids` [N, 1]."""
    linear = [name for name, part in experts[0].named_modules() if isinstance(part, nn.Linear)]
    for name in linear:
        alike = [cast(nn.Linear, expert.get_submodule(name)) for expert in experts]
        alike[0].forward = partial(_linear, alike, core, ids)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for name in linear:
            del experts[0].get_submodule(name).forward


def _linear(alike: list[nn.Linear], core: ExpertCore, ids: Tensor, x: Tensor) -> Tensor:
    y: Tensor = core(x, torch.stack([layer.weight for layer in alike]), ids, False)
    if alike[0].bias is None:
        return y
    return y + nn.functional.embedding(ids, torch.stack([layer.bias for layer in alike]))
