"""Texts kept on disk by a hash of all that they were made from: captures, and what proofs said.

Several processes may share the folder. A text that is not what was written counts as absent.
"""

import hashlib
import os
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from meshwright.models import ModelSource

# The rooms whose code makes a capture, and those whose code a proof runs.
CAPTURING = ("ir", "models")
PROVING = ("ir", "codegen", "runtime", "models", "proof")
_MOST = 256  # texts of a kind; those that nobody has read for the longest time go first


def folder() -> Path:
    """Return the folder of what is kept: below XDG_CACHE_HOME, else below ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "meshwright"


def hash_of(*parts: str) -> str:
    """Return the hash of some texts in their order."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@lru_cache(maxsize=4)
def code_hash(rooms: tuple[str, ...]) -> str:
    """Return a hash of the code of some rooms of this package, and of the version of torch."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256(torch_version().encode())
    for room in rooms:
        for path in sorted((root / room).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def torch_version() -> str:
    """Return the version of torch, which is not imported for it."""
    try:
        return version("torch")
    except PackageNotFoundError:
        import torch

        return torch.__version__


def capture_key(source: ModelSource, dtype: str, freeze: str) -> str:
    """Return the key of a capture; "" where nothing says all that the module is made from."""
    if not (determined := source.determined_by):
        return ""
    shape = f"{source.name} {source.vocab_size}"
    return hash_of(shape, determined, dtype, freeze, code_hash(CAPTURING))


def proof_key(capture: str, full: bool) -> str:
    """Return the key of the proof of a capture that has a key. full: of the whole module."""
    return hash_of(capture, str(full), code_hash(PROVING))


def known(kind: str, key: str) -> str:
    """Return the text that is kept under a key, "" where there is none, and for no key."""
    path = folder() / kind / (key or "none")
    try:
        digest, _, text = path.read_text(encoding="utf-8").partition("\n")
    except (OSError, UnicodeDecodeError):
        return ""
    if digest != hash_of(text):
        return ""
    _touch(path)
    return text


def remember(kind: str, key: str, text: str) -> str:
    """Keep a text, unless the folder cannot be written; return why nothing was kept, else ""."""
    place = folder() / kind
    part = place / f".{key}.{os.getpid()}"
    try:
        place.mkdir(parents=True, exist_ok=True)
        part.write_text(f"{hash_of(text)}\n{text}", encoding="utf-8")
        part.replace(place / key)
        _drop_oldest(place)
    except OSError as error:
        return f"{place} cannot be written ({error.strerror}): nothing is kept for the next plan"
    return ""


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except OSError:  # another user's
        return


def _drop_oldest(place: Path) -> None:
    found = sorted((path.stat().st_mtime, path) for path in place.iterdir())
    for _, path in found[:-_MOST]:
        path.unlink(missing_ok=True)
