"""Proofs that were made before, by a hash of all that a proof reads."""

import hashlib
import os
from functools import lru_cache
from pathlib import Path

import torch

from meshwright.ir.text.graph_text import format_graph
from meshwright.ir.traced import Traced

# The rooms whose code a proof runs.
ROOMS = ("ir", "codegen", "runtime", "models", "proof")


def folder() -> Path:
    """The folder of proofs: below XDG_CACHE_HOME, else below ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "meshwright" / "proofs"


def key(traced: Traced, model: str, full: bool) -> str:
    """Hash the capture, what describes the model, the versions and the code of this package.

    model: text that determines the module, its config for instance. full: of the whole module.
    """
    parts = (
        format_graph(traced.graph),
        repr(traced.constants),
        traced.dtype,
        model,
        str(full),
        torch.__version__,
        code_hash(ROOMS),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@lru_cache(maxsize=2)
def code_hash(rooms: tuple[str, ...]) -> str:
    """Hash the code of some rooms of this package."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for room in rooms:
        for path in sorted((root / room).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def known(name: str) -> str:
    """What an earlier proof of this key said; "" where there is none."""
    path = folder() / name
    return path.read_text() if path.is_file() else ""


def remember(name: str, said: str) -> None:
    """Keep what a proof said; without a place to write to, nothing is kept."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        part = folder() / f"{name}.{os.getpid()}"
        part.write_text(said)
        part.replace(folder() / name)
    except OSError:
        return
