"""A writer of indented lines."""

from collections.abc import Iterator
from contextlib import contextmanager


class Writer:
    def __init__(self) -> None:
        self._lines: list[str] = []
        self._indent = 0

    def line(self, text: str = "") -> None:
        self._lines.append("    " * self._indent + text if text else "")

    def lines(self, *texts: str) -> None:
        for text in texts:
            self.line(text)

    def wrapped(self, head: str, items: list[str], tail: str) -> None:
        """`head` items `tail`, broken at 100 columns."""
        one = head + ", ".join(items) + tail
        if len(one) + 4 * self._indent <= 100:
            self.line(one)
            return
        self.line(head)
        row = ""
        for item in items:
            if row and len(row) + len(item) + 2 + 4 * self._indent > 96:
                self.line("    " + row.rstrip())
                row = ""
            row += f"{item}, "
        self.line("    " + row.rstrip())
        self.line(tail.removeprefix(","))

    def call(self, text: str) -> None:
        """One assignment; where it is too long, its arguments or operands on lines of their own."""
        if len(text) + 4 * self._indent <= 100:
            self.line(text)
            return
        if not text.endswith(")"):
            target, _, made = text.partition(" = ")
            self.lines(f"{target} = (", f"    {made}", ")")
            return
        head, _, rest = text.partition("(")
        self.wrapped(f"{head}(", _split_arguments(rest[:-1]), ")")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self._indent += 1
        yield
        self._indent -= 1

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _split_arguments(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()]
