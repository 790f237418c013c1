"""Adapters of languages, of which a stock class takes one for each row.

X-MOD (Pfeiffer et al. 2022, arXiv 2205.06266, section 3) picks the rows of a language by a mask,
whose number of rows no graph knows. Here each language sees all rows, and a row takes its own: the
others have gradients of 0, as those of no rows in PyTorch.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


def take_over_adapters(model: nn.Module) -> None:
    """Give our function to the layers of a model that have an adapter for each language."""
    for part in model.modules():
        if hasattr(part, "lang_adapter") and hasattr(part, "adapter_modules"):
            layer: Any = part
            layer.lang_adapter = partial(_adapted, layer)


def _adapted(layer: Any, lang_ids: Tensor, hidden_states: Tensor) -> Tensor:
    """lang_ids [B], hidden_states [B, S, D] -> [B, S, D]."""
    x, of_rows = _normed(layer, hidden_states), lang_ids.view(-1, 1, 1)
    y = torch.zeros_like(x)
    for number, adapter in enumerate(layer.adapter_modules.values()):
        y = torch.where(of_rows == number, adapter(x), y)
    return layer.dropout(y) + (x if layer.ln_before_adapter else hidden_states)


def _normed(layer: Any, x: Tensor) -> Tensor:
    if layer.adapter_layer_norm is not None:
        return layer.adapter_layer_norm(x)
    return layer.LayerNorm(x) if layer.adapter_reuse_layer_norm else x
