"""Experts that a stock class keeps as modules of their own, and goes through in a loop.

The loop goes by which experts any token chose, which no graph can. In its place the forward of the
first expert runs once for all tokens, each of its linear layers with the weights of all experts.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from .experts import ExpertCore

_ARGUMENTS = ["hidden_states", "selected_experts", "routing_weights"]


def loops_taken_over(model: nn.Module) -> None:
    """Give our forward to the layers of a model that loop over experts of one token's choice."""
    for layer in model.modules():
        if isinstance(layer, nn.ModuleDict) and _loops(layer):
            experts = list(layer.values())
            layer.core = core = ExpertCore()
            layer.forward = partial(_apply, experts, core)


def _loops(layer: nn.ModuleDict) -> bool:
    names = [f"expert_{i}" for i in range(len(layer))]
    asked = list(inspect.signature(layer.forward).parameters)
    return bool(names) and list(layer) == names and asked == _ARGUMENTS


def _apply(
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
