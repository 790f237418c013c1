"""torch.take_along_dim as torch.gather, which keeps sizes symbols in an export."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_PLAIN = torch.take_along_dim


def _taken(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """Return what torch gives. Sizes beside `dim` broadcast where one of the two is 1."""
    if dim is None or input.dim() != indices.dim():
        return _PLAIN(input, indices, dim)
    dim %= input.dim()
    return _as(input, indices, dim).gather(dim, _as(indices, input, dim))


def _as(given: Tensor, other: Tensor, dim: int) -> Tensor:
    pairs = list(zip(given.shape, other.shape, strict=True))
    sizes = [n if k != dim and _is_one(own) else own for k, (own, n) in enumerate(pairs)]
    return given.expand(sizes) if any(map(_is_one, given.shape)) else given


def _is_one(size: object) -> bool:
    """A size that is a symbol is not compared, which would bind it."""
    return isinstance(size, int) and size == 1


@contextmanager
def gathers() -> Iterator[None]:
    """Let take_along_dim be a gather."""
    kept = Tensor.take_along_dim
    torch.take_along_dim = _taken  # type: ignore[assignment]
    Tensor.take_along_dim = _taken  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.take_along_dim = _PLAIN
        Tensor.take_along_dim = kept  # type: ignore[method-assign]
