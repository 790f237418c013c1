"""A progress line on a terminal; in a log, a line now and then."""

import sys
import time
from typing import TextIO

EVERY_S, EVERY_IN_LOG_S, WIDTH = 0.2, 10.0, 24


class Progress:
    """Draws how much of `total` is done. Quiet on jobs of less than a moment in a log."""

    def __init__(self, what: str, total: int, first: int = 0, stream: TextIO | None = None) -> None:
        self.what, self.total, self.first = what, max(total, 1), first
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty()
        self.every = EVERY_S if self.live else EVERY_IN_LOG_S
        self.began = self.drawn = time.monotonic()

    def begin(self, note: str) -> None:
        """Say what begins, before any of it is done."""
        self._print(f"{self.what} {note}")

    def at(self, done: int, note: str = "") -> None:
        """Draw, unless drawn a moment ago. done: units of `total`."""
        now = time.monotonic()
        if now - self.drawn < self.every:
            return
        self.drawn = now
        self._draw(done, note, now)

    def _draw(self, done: int, note: str, now: float) -> None:
        share = min(done / self.total, 1.0)
        made = max(done - self.first, 1)
        left_s = (now - self.began) * max(self.total - done, 0) / made
        bar = "#" * int(share * WIDTH)
        self._print(f"{self.what} [{bar:<{WIDTH}}] {share:6.1%}  {note}  {left_s:.0f} s left")

    def _print(self, text: str) -> None:
        print(
            f"\r{text}\x1b[K" if self.live else text,
            end="" if self.live else "\n",
            file=self.stream,
            flush=True,
        )

    def clear(self) -> None:
        """Make room for other text, or for the end."""
        if self.live:
            print("\r\x1b[K", end="", file=self.stream, flush=True)
