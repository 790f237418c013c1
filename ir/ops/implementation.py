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
class Implementation:
    """One way to compute an op.

    devices: types that it runs on. dtypes: of the first operand of floats. fits: whether it takes
    an op with operands of given sizes. takes_more: what it needs beyond what the planner counts,
    "" where that is nothing.
    """

    name: str
    devices: tuple[str, ...] = DEVICES
    dtypes: tuple[str, ...] = FLOATS
    fits: Fits = fits_all
    takes_more: str = ""

    def takes(self, op: Op, dtype: str, sizes: list[tuple[int, ...]], device: str) -> bool:
        return device in self.devices and dtype in self.dtypes and self.fits(op, sizes)


TORCH = Implementation("torch")  # plain torch, on every device
