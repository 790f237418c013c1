"""Implementations: the ways in which an op's kernel computes it, and what each takes, as data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ..dtypes import FLOATS
from ..graph import Op

DEVICES = ("cuda", "cpu")  # types of devices, as torch names them
Fits: TypeAlias = Callable[[Op, list[tuple[int, ...]]], bool]  # of the present operands' sizes


def fits_all(op: Op, sizes: list[tuple[int, ...]]) -> bool:
    """Return True: it takes the op whatever its attributes and sizes."""
    return True


@dataclass(frozen=True)
class ScoresWork:
    """Work of an attention for each score that it holds, of a query and a key.

    Scores are of the operands' dtype, float32 at least. flops: a score and unit of the head's size.
    moved: reads and writes of a score in memory. held: scores alive at once.
    """

    flops: int
    moved: int
    held: int


@dataclass(frozen=True)
class Implementation:
    """One way to compute an op.

    devices: types that it runs on. dtypes: of the first operand of floats. fits: whether it takes
    an op with operands of given sizes. scores: what it takes where it holds the scores of an
    attention, in place of the op's own flops; None where it does not.
    """

    name: str
    devices: tuple[str, ...] = DEVICES
    dtypes: tuple[str, ...] = FLOATS
    fits: Fits = fits_all
    scores: ScoresWork | None = None

    def takes(self, op: Op, dtype: str, sizes: list[tuple[int, ...]], device: str) -> bool:
        return device in self.devices and dtype in self.dtypes and self.fits(op, sizes)


TORCH = Implementation("torch")  # plain torch, on every device
