"""What a module of the user's own is made from: the files that its import and its building read."""

from __future__ import annotations

import hashlib
import os
import site
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Code and data of other packages, which their versions stand for, and of the machine.
_OTHERS = tuple(
    str(Path(folder).resolve()) + os.sep
    for folder in (
        *(sys.prefix, sys.base_prefix, *site.getsitepackages(), site.getusersitepackages()),
        *(str(Path(__file__).parents[1]), "/proc", "/sys", "/dev"),
    )
)
# Variables that differ from shell to shell and that no module reads.
_OF_A_SHELL = ("_", "PWD", "OLDPWD", "SHLVL", "TERM", "COLUMNS", "LINES", "PYTEST_CURRENT_TEST")
_CHUNK = 1 << 20

_readers: list[set[str]] = []  # that files which are opened now are noted in
_hooked: list[bool] = []


@contextmanager
def reading() -> Iterator[set[str]]:
    """Note the paths of all files that are opened for reading inside."""
    if not _hooked:
        sys.addaudithook(_note)
        _hooked.append(True)
    found: set[str] = set()
    _readers.append(found)
    try:
        yield found
    finally:
        _readers.remove(found)


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if _readers and event == "open" and isinstance(arguments[0], str | os.PathLike):
        path, mode = os.fspath(arguments[0]), arguments[1]
        if isinstance(path, str) and "w" not in (mode or "r"):
            for found in _readers:
                found.add(os.path.abspath(path))


def determined_by(spec: str, opened: set[str]) -> str:
    """Return text that determines what a factory returns: hashes of the user's own files that were
    opened or imported, versions of other packages, and the environment.

    "" where its code is in no file, as in a notebook.
    """
    module = sys.modules.get(spec.split(":")[1])
    if getattr(module, "__file__", None) is None:
        return ""
    loaded = [(name, item) for name, item in sys.modules.copy().items() if item is not None]
    files = {getattr(item, "__file__", None) or "" for _, item in loaded} | opened
    own = sorted(path for path in files if path and _is_own(path))
    versions = sorted(
        f"{name} {version}"
        for name, item in loaded
        if "." not in name and isinstance(version := vars(item).get("__version__"), str)
    )
    lines = [spec, sys.version, *versions, *(f"{path} {_digest(path)}" for path in own)]
    lines += sorted(f"{k}={v}" for k, v in os.environ.items() if k not in _OF_A_SHELL)
    return "\n".join(lines)


def _is_own(path: str) -> bool:
    real = str(Path(path).resolve())
    return not real.startswith(_OTHERS) and not real.endswith(".pyc") and os.path.isfile(real)


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_CHUNK):
            digest.update(block)
    return digest.hexdigest()
