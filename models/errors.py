"""The one error of this room, and the hint it carries."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ModelError(ValueError):
    """A model was named or configured wrongly; the message names the value and a way out."""


def nearest(name: str, options: Iterable[str]) -> str:
    """A hint to end a message with: the closest valid name, else all of them."""
    known = sorted(options)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"nearest: {close[0]}" if close else f"valid: {', '.join(known)}"
