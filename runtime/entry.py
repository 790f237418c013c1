"""The door that emitted programs name: `from runtime.entry import main`; see launch/entry.py."""

from .launch.entry import main

__all__ = ["main"]
