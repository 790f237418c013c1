"""Documents as they are read, and rows that hold none."""

from typing import NamedTuple

from .tokenizer import Text


class Piece(NamedTuple):
    """A document, or a part of one. at: its place. begins, ends: it holds the document's."""

    at: int
    text: Text
    begins: bool = True
    ends: bool = True


class Broken(NamedTuple):
    """A document that cannot be read."""

    at: int
    why: str


def document(at: int, row: object, field: str) -> Piece | Broken:
    """The text of a row's field."""
    if not isinstance(row, dict):
        return Broken(at, f"an object was expected, not {type(row).__name__}")
    if field not in row:
        return Broken(at, f"no field {field!r} among {', '.join(map(str, sorted(row)[:6]))}")
    text = row[field]
    if not isinstance(text, str):
        return Broken(at, f"field {field!r} is {type(text).__name__}, not text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return Broken(at, f"field {field!r} has half a surrogate pair at {error.start}")
    return Piece(at, text)
