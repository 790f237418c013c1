"""Ctrl-C as an answer: the search ends, and what it found so far is its result."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .incumbent import Incumbent


@dataclass
class Stop:
    """A way out of a search. allowed: Ctrl-C ends it with the best plan so far. at: what it was
    doing then; "" as long as nobody stopped it."""

    allowed: bool = False
    at: str = ""

    @contextmanager
    def within(self, incumbent: Incumbent) -> Iterator[None]:
        """Leave what is inside at Ctrl-C, where a plan was found; SIGTERM ends all."""
        try:
            yield
        except KeyboardInterrupt as interrupt:
            if not self.allowed or type(interrupt) is not KeyboardInterrupt or not incumbent.best:
                raise
            self.at = incumbent.at
