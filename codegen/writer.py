"""A writer of indented lines."""

import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

_INFIX = re.compile(r"(\S+) ([-+*/]) (\S+)")


class Writer:
    def __init__(self) -> None:
        self._lines: list[str] = []
        self._indent = 0

    def line(self, text: str = "") -> None:
        self._lines.append("    " * self._indent + text if text else "")

    def lines(self, *texts: str) -> None:
        for text in texts:
            self.line(text)

    def comment(self, text: str) -> None:
        """Words of a comment, on as many lines as they need."""
        for line in textwrap.wrap(text, 98 - 4 * self._indent, break_long_words=False):
            self.line(f"# {line}")

    def wrapped(self, head: str, items: list[str], tail: str) -> None:
        """`head` items `tail`, broken at 100 columns."""
        one = head + ", ".join(items) + tail
        if len(one) + 4 * self._indent <= 100:
            self.line(one)
            return
        self.line(head)
        self._rows(items)
        self.line(tail.removeprefix(","))

    def _rows(self, items: list[str]) -> None:
        row = ""
        for item in items:
            if row and len(row) + len(item) + 2 + 4 * self._indent > 96:
                self.line("    " + row.rstrip())
                row = ""
            row += f"{item}, "
        self.line("    " + row.rstrip())

    def call(self, text: str) -> None:
        """One assignment or return; where it is too long, its parts on lines of their own."""
        if len(text) + 4 * self._indent <= 100:
            self.line(text)
            return
        head, made = _head(text)
        targets = head.removesuffix(" = ").split(", ")
        if len(targets) > 1 and len(head) + _outer(made) + 4 * self._indent >= 100:
            self._wide_call(targets, made)
        else:
            self._broken(head, made)

    def _wide_call(self, targets: list[str], made: str) -> None:
        """An assignment to more names than a call fits beside."""
        if len(made) + 4 * self._indent <= 96:
            self.wrapped("(", targets, f",) = {made}")
            return
        start = _outer(made)
        self.wrapped("(", targets, f",) = {made[:start]}(")
        self._rows(_split_arguments(made[start + 1 : -1]))
        self.line(")")

    def _broken(self, head: str, made: str) -> None:
        """A call with its arguments on lines of their own, or an expression in brackets."""
        start, parts = _outer(made), _split_arguments(made)
        if len(parts) > 1:
            self.wrapped(f"{head}(", parts, ")")
        elif start > 0 and len(head) + start + 4 * self._indent < 100:
            self.wrapped(f"{head}{made[: start + 1]}", _split_arguments(made[start + 1 : -1]), ")")
        else:
            rows = [made]
            if len(made) + 4 * self._indent > 96 and (infix := _INFIX.fullmatch(made)):
                rows = [infix[1], f"{infix[2]} {infix[3]}"]
            self.lines(f"{head}(", *(f"    {row}" for row in rows), ")")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self._indent += 1
        yield
        self._indent -= 1

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _head(text: str) -> tuple[str, str]:
    """Split a statement into its target or `return`, and the expression."""
    if text.startswith("return "):
        return "return ", text.removeprefix("return ")
    target, equals, made = text.partition(" = ")
    return (target + equals, made) if equals and "(" not in target else ("", text)


def _outer(text: str) -> int:
    """Return where the bracket opens that the text's last character closes, -1 where none does."""
    depth = 0
    for i in range(len(text) - 1, -1, -1):
        depth += (text[i] == ")") - (text[i] == "(")
        if depth == 0:
            return i if text[-1] == ")" else -1
    return -1


def _split_arguments(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()]
