"""Lists over units, of which most are one of few objects."""

from collections.abc import Callable, Iterable
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")


def of_each(make: Callable[[Given], Made], given: Iterable[Given]) -> list[Made]:
    """Return what is made of each, once of an object that comes several times."""
    several = list(given)
    ids = list(map(id, several))
    made = {number: make(one) for number, one in dict(zip(ids, several, strict=True)).items()}
    return [made[number] for number in ids]
