"""The one error of this room, and the hint it carries."""

from __future__ import annotations

import difflib
import importlib
import traceback
from collections.abc import Iterable


class ModelError(ValueError):
    """A model was named or configured wrongly; the message names the value and a way out."""


def nearest(name: str, options: Iterable[str]) -> str:
    """A hint to end a message with: the closest valid name, else all of them."""
    known = sorted(options)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"nearest: {close[0]}" if close else f"valid: {', '.join(known)}"


def said_of(error: BaseException) -> str:
    """Return an error of the user's code in a line, with the place that raised it."""
    text = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {text}{_place_of(error)}"


def _place_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [f for f in frames if f.filename[0] != "<" and f.filename != importlib.__file__]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
