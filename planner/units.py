"""Bytes, times and counts as text for people, and bytes back."""

import re

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def gib(size: float) -> str:
    """A size in bytes as GiB, or as MiB where it is below a quarter of one GiB."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**28 else f"{size / 2**20:.1f} MiB"


def duration(us: float) -> str:
    """A time in microseconds as seconds, or as milliseconds where it is below one second."""
    return f"{us / 1e6:,.4g} s" if us >= 1e6 else f"{us / 1e3:,.4g} ms"


def counted(count: int, word: str) -> str:
    """Return a count with its word, as 1 row, 4 rows and 2 micro-batches."""
    ending = "es" if word.endswith("ch") else "s"
    return f"{count} {word}{ending * (count != 1)}"


def parse_bytes(text: str) -> int:
    """Return the bytes of a size such as 24GiB, 80GB or 512MiB. Raises ValueError for another."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", text.strip())
    if match is None or match[2].upper() not in _UNITS or not float(match[1]):
        raise ValueError(f"{text!r} is no size in bytes; write it as 24GiB, 80GB or 512MiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])
