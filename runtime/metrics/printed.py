"""What a run prints, which its log.txt keeps."""

from pathlib import Path
from typing import TextIO

from .colour import painted

FILE = "log.txt"


class Printed:
    """A stream that a file follows once it is open, from the first line on.

    stream: None for a rank that prints nothing.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self.stream = stream
        self._early: list[str] = []
        self._file: TextIO | None = None

    def __call__(self, text: str, kind: str = "") -> None:
        """Print a text of one or more lines. kind: of its colour; the file has none."""
        if self.stream is not None:
            self.stream.write(painted(text, kind, self.stream) + "\n")
            self._keep(text + "\n")
            self._flush()

    def warn(self, text: str) -> None:
        """Print what the user may want to act on."""
        self(text, "warning")

    def open(self, out: Path) -> None:
        """Keep in the run's folder `out` what is printed; appends to what is there."""
        if self.stream is not None:
            self._file = open(out / FILE, "a", encoding="utf-8")
            self._file.writelines(self._early)
        self._early.clear()

    def _keep(self, text: str) -> None:
        if self._file is None:
            self._early.append(text)
        else:
            self._file.write(text)

    def _flush(self) -> None:
        for stream in filter(None, (self.stream, self._file)):
            stream.flush()
