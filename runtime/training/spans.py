"""Lengths of a run in tokens, such as 2e9tok or 500Mtok, which are turned into steps once."""

import argparse
import math
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

_TOKENS = re.compile(r"(\d+(?:\.\d+)?(?:e\d{1,2})?)([KMBT]?)tok")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_HEADER_LINES = 64  # of a plan's text, in which its sizes stand


class SpanError(ValueError):
    """A length that is neither steps nor tokens, or tokens where a step's are not known."""


def is_tokens(text: str) -> bool:
    return _TOKENS.fullmatch(text) is not None


def parse_span(text: str) -> int | str:
    """Return steps as a number, tokens as they were given; raises argparse's error for others."""
    try:
        return text if is_tokens(text) else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give steps as a whole number, or tokens as 2e9tok or 500Mtok (K, M, B, T)"
        ) from None


def in_steps(option: str, span: int | str, tokens_per_step: Callable[[], int]) -> int:
    """Return a length in steps: of tokens as many as hold them all. Raises SpanError."""
    if isinstance(span, int):
        return span
    found = _TOKENS.fullmatch(span)
    if found is None:
        raise SpanError(f"{option} {span}: give a whole number of steps, or tokens as 500Mtok")
    number, unit = found.groups()
    return math.ceil(Fraction(number) * _UNITS[unit] / tokens_per_step())


def program_tokens_per_step(program: Path) -> int:
    """Return the tokens of a global batch, by the plan in a program's folder. Raises SpanError."""
    path = program / "plan.txt"
    if not path.is_file():
        raise SpanError(
            f"{path} is missing, which says the tokens of a step; give --steps as steps"
        )
    with open(path, encoding="utf-8") as file:
        pairs = (line.partition(": ") for _, line in zip(range(_HEADER_LINES), file, strict=False))
        known = {name: value.strip() for name, _, value in pairs}
    try:
        return int(known["global_batch"]) * int(known["seq"])
    except (KeyError, ValueError):
        raise SpanError(
            f"{path} names no global_batch and seq in its first {_HEADER_LINES} lines; compile the "
            "plan again, or give --steps as steps"
        ) from None
