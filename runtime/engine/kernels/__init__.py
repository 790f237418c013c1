"""Kernels behind the semantic ops of the registry: plain functions, one name each.

A test holds this list equal to the registry, and to those of its ops that have a kernel which
adds a weight's gradient to its buffer: by the name of the op after `add_`.
"""

from .attention import attention, attention_backward
from .cross_entropy import (
    add_linear_cross_entropy_backward,
    linear_cross_entropy,
    linear_cross_entropy_backward,
    linear_cross_entropy_keeping,
)
from .dropout import dropout
from .embedding import add_embedding_weight_grad, embedding, embedding_weight_grad
from .experts import (
    expert_linear,
    expert_linear_input_grad,
    expert_linear_weight_grad,
)
from .linear import add_linear_weight_grad, linear, linear_input_grad, linear_weight_grad
from .recurrence import recurrence, recurrence_backward
from .router_bias import biased_choice, biased_choice_backward
from .router_load import router_load, router_load_backward

__all__ = [
    "add_embedding_weight_grad",
    "add_linear_cross_entropy_backward",
    "add_linear_weight_grad",
    "attention",
    "attention_backward",
    "biased_choice",
    "biased_choice_backward",
    "dropout",
    "embedding",
    "embedding_weight_grad",
    "expert_linear",
    "expert_linear_input_grad",
    "expert_linear_weight_grad",
    "linear",
    "linear_cross_entropy",
    "linear_cross_entropy_backward",
    "linear_cross_entropy_keeping",
    "linear_input_grad",
    "linear_weight_grad",
    "recurrence",
    "recurrence_backward",
    "router_load",
    "router_load_backward",
]
