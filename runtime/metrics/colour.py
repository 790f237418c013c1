"""Colour on terminals; none in a pipe, a file, or where NO_COLOR is set (no-color.org)."""

import os
from typing import TextIO

_CODES = {"": "", "strong": "1", "faint": "2", "error": "31", "warning": "33"}


def painted(text: str, kind: str, stream: TextIO) -> str:
    """Return the text in the colour of its kind where the stream shows colours.

    kind: strong, faint, error, warning, or "" for plain text.
    """
    code = _CODES[kind]
    return f"\x1b[{code}m{text}\x1b[0m" if code and shows_colour(stream) else text


def shows_colour(stream: TextIO) -> bool:
    """Tell whether a stream is a terminal of a user who wants colour."""
    environment = os.environ
    plain = environment.get("NO_COLOR") or environment.get("TERM") == "dumb"
    return not plain and stream.isatty()
