"""What of the past a layer of `transformers` sees, read off the mask function that it asks for.

The library makes a mask of a rule: a function of batch, head, query and key place. Where the rule
is that of causal attention, of a window or not, the layers get it as a Visible in the mask's place,
and no mask exists. Any other rule becomes the library's own mask, a tensor [B, 1, S, S].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@contextmanager
def one_document_a_row() -> Iterator[None]:
    """Keep the library from looking for packed documents, which it does by values of positions.

    A class that is given no positions counts them itself, from 0 in every row.
    """
    from transformers import masking_utils

    kept = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda *_, **__: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = kept


class OtherMaskError(Exception):
    """A rule that is neither causal nor a causal window."""


@dataclass(frozen=True)
class Visible:
    """Query i sees key j where j <= i, and i - window < j where there is a window."""

    window: int | None = None


class _Place(int):
    """A place, or the answer of a rule, with what rules ask of the tensors they are given else."""

    device = "cpu"

    def new_ones(self, *_: object, **__: object) -> _Place:
        return _Place(1)

    def new_zeros(self, *_: object, **__: object) -> _Place:
        return _Place(0)

    def to(self, *_: object, **__: object) -> _Place:
        return self


def _calculated(name: str) -> Callable[..., Any]:
    plain = getattr(int, name)
    return lambda *given: _Place(plain(*given))


for _name in "sub add mul floordiv mod and or le lt ge gt eq ne abs".split():
    setattr(_Place, f"__{_name}__", _calculated(f"__{_name}__"))


def sees_all(rule: Callable[..., Any], reach: int | None) -> bool:
    """Tell whether a mask function shows every key to every query. reach: as of visible_of."""
    places = _places_around(reach)
    try:
        return all(rule(0, 0, _Place(q), _Place(k)) for q in places for k in places)
    except Exception:  # it reads tensors
        return False


def visible_of(rule: Callable[..., Any], reach: int | None) -> Visible:
    """Return what a mask function shows. reach: the length that its caller names beside it.

    Both are compared at places around multiples of the reach. Raises OtherMaskError.
    """
    places = _places_around(reach)
    pairs = [(query, key) for query in places for key in places]
    try:
        shown = [bool(rule(0, 0, _Place(query), _Place(key))) for query, key in pairs]
    except Exception as error:  # it reads tensors, of padding or of documents
        raise OtherMaskError from error
    for window in (None, reach):
        wide = window or places[-1] + 1
        if shown == [key <= query < key + wide for query, key in pairs]:
            return Visible(window)
    raise OtherMaskError


def _places_around(reach: int | None) -> list[int]:
    near = [0, 1, 2, 3, 5, 8, 13, 21]
    far = [10**n for n in range(2, 7)]  # past every window that a caller does not name
    edges = [n * reach + d for n in (1, 2, 3) for d in (-2, -1, 0, 1, 2)] if reach else []
    return sorted({p for p in near + far + edges if p >= 0})


def rule_mask(
    *,
    mask_function: Callable[..., Any],
    q_offset: Any = 0,
    kv_offset: Any = 0,
    local_size: int | None = None,
    attention_mask: Any = None,
    **_: object,
) -> Visible:
    """The mask function of the library that returns a rule; raises OtherMaskError."""
    if attention_mask is not None or not (type(q_offset) is type(kv_offset) is int):
        raise OtherMaskError
    if q_offset or kv_offset:
        raise OtherMaskError
    return visible_of(mask_function, local_size)


def either_mask(make: Callable[..., Tensor], **given: Any) -> Visible | Tensor:
    """The mask function of the library that returns a rule where there is one.

    Else it returns the padding, [B, 1, 1, S] to be added to the scores, where that alone hides
    keys, or what `make` makes.
    """
    try:
        return rule_mask(**given)
    except OtherMaskError:
        padding: Tensor | None = given.get("attention_mask")
        if padding is None or padding.shape[-1] != given["kv_length"]:
            return make(**given)
        if not sees_all(given["mask_function"], given.get("local_size")):
            return make(**given)
        hidden = ~padding.to(torch.bool)[:, None, None, :]
        added = torch.zeros_like(hidden, dtype=given["dtype"])
        return added.masked_fill(hidden, torch.finfo(added.dtype).min)
