"""Lists over units, of which most are one of few objects."""

from collections.abc import Callable, Iterable
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")


def of_each(make: Callable[[Given], Made], given: Iterable[Given]) -> list[Made]:
    """Return what is made of each, once of an object that comes several times."""
    known: dict[int, Made] = {}
    found = []
    for one in given:
        if id(one) not in known:
            known[id(one)] = make(one)
        found.append(known[id(one)])
    return found
