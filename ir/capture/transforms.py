"""Refuse functions of torch that take functions, masks of a class of their own or a generator: an
export fails in them, and says something else."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ..errors import CaptureError
from .lines import of_model, short_line
from .nodes import NO_OP, own_draws

_SCORES = "which a graph does not hold; call F.scaled_dot_product_attention with is_causal=True, "
_SCORES += "or with a mask of tensors"
# By modules of torch: what a call comes to there, by the name that a user knows, and what is said.
_REFUSED = {
    "torch._functorch.apis": {"vmap_impl": ("torch.vmap", NO_OP)},
    "torch._functorch.eager_transforms": {
        "grad_impl": ("torch.func.grad", NO_OP),
        "grad_and_value_impl": ("torch.func.grad_and_value", NO_OP),
        "_vjp_with_argnums": ("torch.func.vjp or jacrev", NO_OP),
        "_jvp_with_argnums": ("torch.func.jvp or jacfwd", NO_OP),
    },
    "torch._higher_order_ops.associative_scan": {
        "generic_associative_scan": (
            "associative_scan",
            "is cut up by the length of a row, and a graph has one way for all lengths; write what "
            "it computes in tensor ops, such as cumsum",
        ),
    },
    "torch.nn.attention.flex_attention": {
        "_validate_sdpa_input": ("flex_attention", f"takes functions of scores, {_SCORES}"),
        "create_mask": ("create_block_mask", f"takes a function of scores, {_SCORES}"),
    },
    "torch.nn.attention.bias": {"CausalBias": ("CausalBias", f"is no plain tensor, {_SCORES}")},
}
_DRAWS = "rand randn randint randperm normal".split()
# A call that comes through these is the user's own; one of another part of torch is not.
_TORCH = str(Path(torch.__file__).parent)
_THROUGH = tuple(
    f"{_TORCH}/{part}/" for part in ("_functorch", "_higher_order_ops", "nn/attention", "_dynamo")
)


@contextmanager
def no_transforms(name: str) -> Iterator[None]:
    """Refuse each of them by what it is called and the line of the model that calls it."""
    places = [
        (module, key, _refused(getattr(module, key), known, said))
        for path, each in _REFUSED.items()
        for module in [import_module(path)]
        for key, (known, said) in each.items()
        if hasattr(module, key)
    ]
    places += [(torch, key, _without_generator(getattr(torch, key), name)) for key in _DRAWS]
    kept = [(module, key, getattr(module, key)) for module, key, _ in places]
    for module, key, function in places:
        setattr(module, key, function)
    try:
        yield
    finally:
        for module, key, plain in kept:
            setattr(module, key, plain)


def _refused(plain: Callable[..., Any], known: str, said: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if line := _line_of_call():
            raise CaptureError(f"{known} at {line} {said}")
        return plain(*args, **kwargs)

    return call


def _without_generator(plain: Callable[..., Any], name: str) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("generator") is not None and (line := _line_of_call()):
            raise own_draws(f"model {name}: {plain.__name__} at {line}")
        return plain(*args, **kwargs)

    return draw


def _line_of_call() -> str:
    """Return the line of a model that calls what refuses; "" where torch itself does."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_THROUGH):
        frame = frame.f_back
    path = frame.f_code.co_filename
    return short_line(path, frame.f_lineno) if path[0] != "<" and of_model(path) else ""
