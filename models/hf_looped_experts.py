"""Experts that a stock class goes through in a loop of its own.

The loop goes by which experts any token chose, which no graph can. Where their weights are packed,
all tokens are sent at once, as a layer's own words say: those of DBRX, of LongCat-Flash, some
experts of which hand on their tokens as they are (Meituan 2025, arXiv 2509.01322, section 2.1), and
of JetMoE, whose attention has experts of queries and of outputs (Shen et al. 2024, arXiv
2404.07413, section 2.2).

Experts that are modules are refused: one that no token of a batch chose has no gradient in PyTorch,
not zeros, and its optimizer leaves it alone for that step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from .errors import ModelError
from .experts import ExpertCore

_GLU = ("w1", "v1", "w2", "activation_fn")
_BY_SIZES = ("input_linear", "output_linear", "router")
_WITH_IDENTITIES = ("num_routed_experts", "identity_expert", "gate_up_proj", "down_proj", "act_fn")


def take_over_loops(spec: str, model: nn.Module) -> None:
    """Give our forward to the layers of a model that loop over experts.

    spec: what the user called it. Raises ModelError where experts are modules.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, nn.ModuleDict) and "expert_0" in layer:
            count = sum(key.startswith("expert_") for key in layer)
            raise ModelError(
                f"{spec}: the {count} experts of {name} are modules, in a loop over those "
                "that tokens chose: PyTorch updates an expert in some steps and leaves it alone in "
                "others, a plan updates all in each; take a class whose experts are packed"
            )
        if (forward := _forward_of(layer)) is not None:
            layer.core = core = ExpertCore()
            layer.forward = partial(forward, core)
        elif all(hasattr(layer, name) for name in _BY_SIZES):
            _take_over_sizes(layer)


def _take_over_sizes(layer: Any) -> None:
    """Let a layer that cuts its tokens by how many an expert gets send each by its choices."""
    layer.core = core = ExpertCore()
    layer.router.forward = partial(_gating, layer.router)
    if hasattr(layer, "map"):
        layer.map = partial(_queries, layer, core)
        layer.reduce = partial(_outputs, layer, core)
    else:
        layer.forward = partial(_of_sizes, layer, core)


def _forward_of(layer: nn.Module) -> Callable[..., Tensor] | None:
    """Return what takes the place of a layer's forward, but for the core."""
    if all(getattr(layer, name, None) is not None for name in _WITH_IDENTITIES):
        return partial(_beside_identities, layer)
    if all(hasattr(getattr(layer, "mlp", None), name) for name in _GLU):
        return partial(_of_packed_rows, layer)
    return None


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


_Gating: TypeAlias = tuple[Tensor, None, Tensor, None, Tensor]


def _gating(router: Any, hidden_states: Tensor) -> _Gating:
    """hidden_states [N, I] -> choices and their weights [N, K], and logits [N, E], each in the
    place that the router's own has."""
    logits = router.layer(hidden_states).float()
    top, choices = logits.topk(router.top_k, dim=1)
    return choices, None, top.softmax(1).type_as(hidden_states), None, logits


def _of_sizes(layer: Any, core: ExpertCore, layer_input: Tensor) -> Tensor:
    """layer_input [B, S, I] -> [B, S, I]."""
    x = layer_input.reshape(-1, layer.input_size)
    choices, _, weights, *_ = layer.router(x)
    gate, up = core(x, layer.input_linear.weight, choices, False).chunk(2, dim=-1)
    y = core(layer.activation(gate) * up, layer.output_linear.weight, choices, False)
    return (y * weights.unsqueeze(-1)).sum(-2).view_as(layer_input) + layer.bias


def _queries(layer: Any, core: ExpertCore, layer_input: Tensor) -> tuple[Tensor, Tensor, _Gating]:
    """layer_input [B, S, I] -> queries [B, S, K, H], logits of the router, and its choices."""
    x = layer_input.reshape(-1, layer.input_size)
    routed = layer.router(x)
    q = core(x, layer.input_linear.weight, routed[0], False)
    return q.view(*layer_input.shape[:-1], *q.shape[1:]), routed[-1], routed


def _outputs(layer: Any, core: ExpertCore, layer_input: Tensor, routed: _Gating) -> Tensor:
    """layer_input [B, S, K, H] -> [B, S, I]."""
    choices, _, weights, *_ = routed
    y = core(layer_input.flatten(0, 1), layer.output_linear.weight, choices, False)
    y = (y * weights.unsqueeze(-1)).sum(-2)
    return y.view(*layer_input.shape[:2], -1) + layer.bias
