"""Complex numbers as pairs of real ones, for the time of an export: a plan holds real tensors.

Modules that rotate queries and keys by complex factors make them by `polar`, `complex` or
`view_as_complex`, multiply, and take them apart by `view_as_real`. The makers give a Pair instead,
which goes through products, sums and changes of shape; anything else of it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..errors import CaptureError

# Methods that move elements, and do the same to both parts.
_MOVES = """
    unsqueeze squeeze view reshape expand transpose permute flatten unflatten contiguous clone
    detach repeat repeat_interleave narrow select chunk split unbind type_as __getitem__
""".split()


class Pair:
    """The real and the imaginary part of a complex tensor, of one shape."""

    def __init__(self, real: Tensor, imag: Tensor) -> None:
        self.real, self.imag = real, imag

    def __mul__(self, other: Any) -> Pair:
        if not isinstance(other, Pair):
            return Pair(self.real * other, self.imag * other)
        real = self.real * other.real - self.imag * other.imag
        return Pair(real, self.real * other.imag + self.imag * other.real)

    __rmul__ = __mul__

    def __add__(self, other: Pair) -> Pair:
        return Pair(self.real + other.real, self.imag + other.imag)

    def __sub__(self, other: Pair) -> Pair:
        return Pair(self.real - other.real, self.imag - other.imag)

    def conj(self) -> Pair:
        return Pair(self.real, -self.imag)

    def to(self, *given: Any, **named: Any) -> Pair:
        """Move to another device; another complex dtype is that of the parts already."""
        kept = [x for x in given if not (isinstance(x, torch.dtype) and x.is_complex)]
        return Pair(self.real.to(*kept, **named), self.imag.to(*kept, **named)) if kept else self

    def dim(self) -> int:
        return self.real.dim()

    def size(self, *dim: int) -> Any:
        return self.real.size(*dim)

    @property
    def shape(self) -> torch.Size:
        return self.real.shape

    @property
    def ndim(self) -> int:
        return self.real.ndim

    @property
    def device(self) -> torch.device:
        return self.real.device

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name == "view_as_real":
            return torch.stack([args[0].real, args[0].imag], dim=-1)
        if name in ("mul", "__mul__", "__rmul__"):
            first, second = args
            return first * second if isinstance(first, cls) else second * first
        if name in _MOVES and isinstance(args[0], cls):
            return getattr(args[0], name)(*args[1:], **(kwargs or {}))
        raise CaptureError(
            f"{name} of complex numbers: products, sums and changes of shape of them are computed "
            "as pairs of real ones; write it in real and imaginary parts"
        )


def _moving(name: str) -> Callable[..., Any]:
    def move(self: Pair, *args: Any, **kwargs: Any) -> Any:
        real, imag = (getattr(x, name)(*args, **kwargs) for x in (self.real, self.imag))
        if isinstance(real, Tensor):
            return Pair(real, imag)
        return tuple(Pair(a, b) for a, b in zip(real, imag, strict=True))

    return move


for _name in _MOVES:
    setattr(Pair, _name, _moving(_name))


def _polar(abs: Tensor, angle: Tensor) -> Pair:
    return Pair(abs * torch.cos(angle), abs * torch.sin(angle))


def _view_as_complex(x: Tensor) -> Pair:
    return Pair(x.select(-1, 0), x.select(-1, 1))


@contextmanager
def complex_as_pairs() -> Iterator[None]:
    """Let the functions of torch that make complex tensors make pairs."""
    made = {"polar": _polar, "complex": Pair, "view_as_complex": _view_as_complex}
    kept = {name: getattr(torch, name) for name in made}
    for name, function in made.items():
        setattr(torch, name, function)
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(torch, name, function)
