"""The lengths of rows that a captured model takes."""

from typing import NamedTuple


class Lengths(NamedTuple):
    """Multiples of `step` tokens from the least to the most, which are multiples themselves.

    most: None for any.
    """

    least: int = 1
    most: int | None = None
    step: int = 1

    def takes(self, seq: int) -> bool:
        """Return whether rows of `seq` tokens are among them."""
        return self.least <= seq <= (self.most or seq) and seq % self.step == 0

    def from_to(self, least: int, most: int | None) -> "Lengths":
        """Return those of them that lie between two lengths; most: None for any."""
        least = max(self.least, -(-least // self.step) * self.step)
        ends = [n for n in (self.most, most) if n is not None]
        return self._replace(least=least, most=min(ends) // self.step * self.step if ends else None)

    def near(self, seq: int) -> int:
        """Return the first of them that has `seq` tokens or more, the most where none has."""
        above = max(self.least, -(-seq // self.step) * self.step)
        return above if self.most is None else min(above, self.most)

    def __str__(self) -> str:
        multiples = f", multiples of {self.step}" if self.step > 1 else ""
        return f"{self.least} to {self.most or 'any'} tokens{multiples}"
