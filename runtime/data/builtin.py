"""Corpora that need no preparation: the demo text, a file's raw bytes, synthetic tokens."""

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .corpus import ArrayCorpus, SyntheticCorpus
from .errors import DataError
from .mapped import MappedTokens
from .tokenizer import BYTES

HELD_OUT_ONE_IN = 20  # of the files, or of the bytes at the end of a single file
# Folders of the standard library that the demo text leaves out.
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def standard_library(held_out: bool) -> ArrayCorpus:
    """The Python standard library's source, by file; a NUL ends each file.

    All .py files by name, without installed packages and tests: tests are half of the bytes on
    some systems and not installed at all on others.
    """
    root = Path(sysconfig.get_path("stdlib"))
    chosen = sorted(name for name in _sources(root) if _is_held_out(name) == held_out)
    if not chosen:
        raise DataError(f"no Python source below {root}; give --data file:PATH instead of demo")
    text = b"".join((root / name).read_bytes() + b"\0" for name in chosen)
    return ArrayCorpus("demo", np.frombuffer(text, np.uint8), tokenizer=BYTES)


def _sources(root: Path) -> Iterator[str]:
    """Names below `root` of the files that the demo text holds, with slashes; in no order.

    What is left out is not entered: installed packages may be many times the library itself.
    """
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if name not in _SKIPPED]
        inside = Path(folder).relative_to(root)
        yield from ((inside / name).as_posix() for name in files if name.endswith(".py"))


def _is_held_out(name: str) -> bool:
    """By the name alone: the same on every machine, whatever other files lie there."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "little") % HELD_OUT_ONE_IN == 0


def file_bytes(name: str, path: Path, held_out: bool) -> ArrayCorpus:
    """Raw bytes of one file; the last twentieth is held out."""
    tokens = MappedTokens(path, np.dtype(np.uint8))
    cut = len(tokens) - len(tokens) // HELD_OUT_ONE_IN
    chosen = tokens.part(slice(cut, None) if held_out else slice(cut))
    return ArrayCorpus(name, chosen, tokenizer=BYTES)


def synthetic(name: str, held_out: bool) -> SyntheticCorpus:
    """`random:VOCAB[:SEED]` or `fixed:VOCAB[:SEED]`."""
    kind, *numbers = name.split(":")
    if len(numbers) > 2 or not all(number.isdecimal() for number in numbers):
        raise DataError(f"cannot read {name!r}; write {kind}:VOCAB or {kind}:VOCAB:SEED")
    vocab, seed = (int(number) for number in [*numbers, "0"][:2])
    if vocab < 1:
        raise DataError(f"{name!r} has a vocabulary of {vocab}; give at least 1")
    # The held-out part ends, since evaluation reads all of it; the other seed is another stream.
    length = 2**16 if held_out else 2**40
    return SyntheticCorpus(name, vocab, 2 * seed + held_out, length, fixed=kind == "fixed")
