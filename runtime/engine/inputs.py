"""What a micro-batch gives to the model, made of its tokens and labels."""

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from .kernels.dropout import row_keys
from .layout import Input

BESIDE = ("source", "images", "places")  # roles of what data gives beside tokens


def _positions(tokens: Tensor) -> Tensor:
    return torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)


def step_draws(seed: int, step: int, device: torch.device | None = None) -> Tensor:
    """Return the key of what a step of a run draws, int64 [5]: four words of 32 bits, and 1."""
    digest = hashlib.sha256(f"draws/{seed}/{step}".encode()).digest()
    words = (int.from_bytes(digest[k : k + 4], "little") for k in range(0, 16, 4))
    return torch.tensor([*words, 1], device=device)


def batch_of(
    inputs: tuple[Input, ...],
    tokens: Tensor,
    labels: Tensor,
    rows: Tensor | None = None,
    draws: Tensor | None = None,
    **others: Tensor,
) -> dict[str, Tensor]:
    """Return by role what the inputs of a program ask for, of one micro-batch on its device.

    tokens, labels: int64 [B, S]. rows: int64 [B], places in the global batch, from 0 where they are
    not told. draws: of step_draws, of seed 0 and step 0 where it is not told; a stage makes keys of
    it. others: by role, what is read beside tokens; images become of the dtype that is asked for.
    The executor adds the denominator.
    """
    places = torch.arange(len(tokens), device=tokens.device) if rows is None else rows
    key = step_draws(0, 0, tokens.device) if draws is None else draws
    made: dict[str, Callable[[], Tensor]] = {
        "tokens": lambda: tokens,
        "labels": lambda: labels,
        "positions": lambda: _positions(tokens),
        "rows": lambda: row_keys(key, places),
        "draws": lambda: key,
    }
    given = {i.role: made[i.role]() for i in inputs if i.role in made}
    kinds = {i.role: getattr(torch, i.dtype) for i in inputs}
    return given | {role: x.to(kinds[role]) for role, x in others.items() if role in kinds}
