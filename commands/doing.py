"""What a command is doing while it takes its time: a line on stderr."""

import shutil
import sys
import threading
import time
from typing import Self, TextIO

# Seconds between two lines: redrawn on a terminal, one below the other elsewhere.
EVERY_S, EVERY_IN_LOG_S = 0.2, 2.5


class Doing:
    """A display of what is being done, with the seconds since it began, until it is left.

    One line that is redrawn on a terminal; elsewhere a line every few seconds, of what is done
    then, whether that is new or not, and none of what takes a moment.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty()
        self.every = EVERY_S if self.live else EVERY_IN_LOG_S
        self.began = time.monotonic()
        self.drawn, self.text = float("-inf") if self.live else self.began, ""
        self.told = ""  # what the last line said
        self._left, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._go_on, daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._left.set()
        if self._thread.is_alive():
            self._thread.join()
        told = not self.live and self.told == self.text
        if kind is None and self.text and not told and time.monotonic() - self.began > self.every:
            self._close(self.text)
        elif self.live:
            print("\r\x1b[K", end="", file=self.stream, flush=True)

    def __call__(self, text: str) -> None:
        """Say what is done from now on; the first time starts the thread that goes on saying it,
        as processes may be forked before."""
        if not self.text:
            self._thread.start()
        self.text = text
        self._draw_in_time()

    def _close(self, text: str) -> None:
        """Say what came of what took long, in a line that stays."""
        self._draw(self._timed(text))
        if self.live:
            print(file=self.stream, flush=True)

    def _timed(self, text: str) -> str:
        return f"[{time.monotonic() - self.began:6.1f} s] {text}"

    def _go_on(self) -> None:
        while not self._left.wait(self.every / 5):
            self._draw_in_time()

    def _draw_in_time(self) -> None:
        with self._lock:
            now = time.monotonic()
            if self.text and now - self.drawn >= self.every:
                self.drawn, self.told = now, self.text
                self._draw(self._timed(self.text))

    def _draw(self, text: str) -> None:
        if self.live:
            text = f"\r{text[: shutil.get_terminal_size().columns - 1]}\x1b[K"
        print(text, end="" if self.live else "\n", file=self.stream, flush=True)
