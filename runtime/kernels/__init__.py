"""Kernels behind the op table's semantic ops: plain functions, one name each.

A test holds this list equal to the op table's.
"""

from .attention import attention, attention_backward
from .cross_entropy import linear_cross_entropy, linear_cross_entropy_backward
from .embedding import embedding, embedding_weight_grad
from .linear import linear, linear_input_grad, linear_weight_grad

__all__ = [
    "attention",
    "attention_backward",
    "embedding",
    "embedding_weight_grad",
    "linear",
    "linear_cross_entropy",
    "linear_cross_entropy_backward",
    "linear_input_grad",
    "linear_weight_grad",
]
