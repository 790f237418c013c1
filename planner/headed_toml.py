"""TOML files of a user whose first line says what they are: prices, software profiles."""

import tomllib
from pathlib import Path
from typing import Any

from .hardware.cluster import ClusterError


def read_tables(path: Path, header: str, option: str) -> dict[str, Any]:
    """Return what a file holds by name. header: its first line. option: of the command, for
    messages. Raises ClusterError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ClusterError(f"{option} {path} cannot be read: {reason}") from None
    first = text.partition("\n")[0].strip()
    if first != header:
        raise ClusterError(
            f"{option} {path}: the first line must be {header!r}, found {first[:40]!r}"
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ClusterError(f"{option} {path}: not TOML: {error}") from None
